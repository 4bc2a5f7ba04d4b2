#include "backends/native/redo_watch.hpp"

#include <fmt/format.h>

#include <atomic>

namespace batten::impl::native {
namespace {

// What the device writes may change at any time.
std::uint64_t read(std::uint64_t& count) {
  return std::atomic_ref(count).load(std::memory_order_relaxed);
}

}  // namespace

RedoWatch::RedoWatch(RedoCounts& counts, bool may_switch)
    : counts_(counts),
      before_{read(counts.of_calls), read(counts.of_graphs)},
      may_switch_(may_switch),
      window_redone_(before_.of_calls) {}

bool RedoWatch::online() const {
  const std::lock_guard lock(mutex_);
  return online_;
}

bool RedoWatch::call(std::int64_t tiles) {
  const std::lock_guard lock(mutex_);
  if (online_) return true;
  if (window_tiles_ >= kWindow) {
    // Calls that are still in flight count in the next window.
    const std::uint64_t redone = read(counts_.of_calls);
    const auto most = kMostRedone * static_cast<double>(window_tiles_);
    online_ = may_switch_ && static_cast<double>(redone - window_redone_) > most;
    if (online_) return true;
    window_redone_ = redone;
    window_tiles_ = 0;
  }
  window_tiles_ += tiles;
  tiles_ += tiles;
  return false;
}

std::string RedoWatch::remark() const {
  const std::uint64_t of_calls = read(counts_.of_calls) - before_.of_calls;
  const std::uint64_t of_graphs = read(counts_.of_graphs) - before_.of_graphs;
  const std::lock_guard lock(mutex_);
  if (online_) return fmt::format("online since {} of {} tiles were redone", of_calls, tiles_);
  if (of_calls + of_graphs == 0) return {};
  return fmt::format("{} tiles redone so far", of_calls + of_graphs);
}

}  // namespace batten::impl::native
