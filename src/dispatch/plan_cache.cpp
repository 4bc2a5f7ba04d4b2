#include "dispatch/plan_cache.hpp"

#include "core/hash.hpp"

namespace batten::impl {
namespace {

std::size_t hash_of_layout(const Layout& l) noexcept { return hash_of(l.batch, l.row, l.head); }

}  // namespace

std::size_t PlanKeyHash::operator()(const PlanKey& key) const noexcept {
  const Problem& p = key.problem;
  const Shape& s = key.shape;
  return hash_of(
      static_cast<const void*>(key.backend), key.device.index, static_cast<int>(key.device.type),
      static_cast<int>(p.dtype), static_cast<int>(p.out_dtype), p.num_heads, p.num_kv_heads,
      p.head_dim, p.head_dim_v, static_cast<int>(p.mask), p.batch_invariant, s.batch, s.max_q,
      s.max_kv, s.packed, s.lse, static_cast<int>(s.q_lengths), static_cast<int>(s.kv_lengths),
      hash_of_layout(s.q), hash_of_layout(s.k), hash_of_layout(s.v), hash_of_layout(s.out),
      key.options.form, key.options.num_threads, key.settings);
}

PlanCache& PlanCache::instance() {
  static auto* cache = new PlanCache;  // never destroyed: plans may hold driver objects
  return *cache;
}

PlanCache::Found PlanCache::get(const PlanKey& key,
                                const std::function<std::shared_ptr<const Plan>()>& build) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = index_.find(key); found != index_.end()) {
      recent_.splice(recent_.begin(), recent_, found->second);
      entry = *found->second;
    } else {
      entry = std::make_shared<Entry>();
      entry->key = key;
      recent_.push_front(entry);
      index_.emplace(key, recent_.begin());
      if (recent_.size() > capacity_) {
        index_.erase(recent_.back()->key);
        recent_.pop_back();
      }
    }
  }
  const std::lock_guard lock(entry->building);
  if (entry->plan) return {entry->plan, true};
  if (entry->failure) std::rethrow_exception(entry->failure);
  try {
    entry->plan = build();
  } catch (...) {
    entry->failure = std::current_exception();
    forget(entry);
    throw;
  }
  return {entry->plan, false};
}

void PlanCache::forget(const std::shared_ptr<Entry>& entry) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(entry->key);
  if (found == index_.end() || *found->second != entry) return;
  recent_.erase(found->second);
  index_.erase(found);
}

std::size_t PlanCache::size() const {
  const std::lock_guard lock(mutex_);
  return recent_.size();
}

void PlanCache::clear() {
  const std::lock_guard lock(mutex_);
  index_.clear();
  recent_.clear();
}

}  // namespace batten::impl
