#include "dispatch/attention.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/env.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "core/nvtx.hpp"
#include "cost/lookup.hpp"
#include "dispatch/plan_cache.hpp"
#include "dispatch/receipt.hpp"
#include "dispatch/registry.hpp"
#include "dispatch/workspace.hpp"

namespace batten::impl {
namespace {

std::string unavailable_text(const Availability& a) {
  return a.remedy.empty() ? a.reason : fmt::format("{}; {}", a.reason, a.remedy);
}

}  // namespace

Attention::Attention(const batten_problem& problem, Device device, const batten_options& options)
    : problem_(validate_problem(problem)),
      device_(device),
      choice_(resolve_choice(options.backend)),
      options_{.form = choice_.form, .num_threads = options.num_threads},
      check_(environment_flag("BATTEN_CHECK", false)) {
  if (options.num_threads < 0) {
    fail(ErrorCode::InvalidArgument, "options: num_threads is {}, it must not be negative",
         options.num_threads);
  }
  check_device_exists(device_);
  if (choice_.backend == nullptr) {
    candidates_ = find_candidates(passed_over_);
    if (candidates_.empty()) {
      fail(ErrorCode::Unsupported, "auto: no backend on {} serves this problem ({})", device_.str(),
           passed_over_);
    }
    if (!device_.is_cpu()) card_ = cost::card_of(device_runtime().properties(device_.index));
    return;
  }
  const Backend& backend = *choice_.backend;
  if (const Availability a = backend.availability(device_); !a.available) {
    fail(ErrorCode::Unavailable, "backend {} is not available on {}: {}", backend.name(),
         device_.str(), unavailable_text(a));
  }
  if (const auto reason = backend.why_not(problem_.problem, device_)) {
    fail(ErrorCode::Unsupported, "backend {} does not serve this problem: {}; {}", backend.name(),
         *reason, others_that_serve(&backend, nullptr));
  }
  candidates_ = {&backend};
}

std::vector<const Backend*> Attention::find_candidates(std::string& passed_over) const {
  std::vector<const Backend*> found;
  for (const Registration& entry : Registry::instance().all()) {
    if (!entry.automatic) continue;
    const Backend& backend = *entry.backend;
    const Availability a = backend.availability(device_);
    std::string why =
        a.available ? backend.why_not(problem_.problem, device_).value_or("") : a.reason;
    if (why.empty()) {
      found.push_back(&backend);
    } else {
      if (!passed_over.empty()) passed_over += "; ";
      passed_over += fmt::format("{}: {}", backend.name(), why);
    }
  }
  return found;
}

std::string Attention::others_that_serve(const Backend* except, const Shape* shape) const {
  std::string names;
  for (const Registration& entry : Registry::instance().all()) {
    const Backend& backend = *entry.backend;
    if (&backend == except || !backend.availability(device_).available) continue;
    if (backend.why_not(problem_.problem, device_)) continue;
    if (shape != nullptr && backend.why_not(problem_.problem, *shape, device_, {})) continue;
    names += names.empty() ? "" : ", ";
    names += backend.name();
  }
  return names.empty() ? "no backend on this device does" : "backends that do: " + names;
}

Ranking Attention::ranked(const Shape& shape) const {
  Ranking ranking = rank(candidates_, problem_.problem, shape, device_, options_, card_.get());
  const bool named = choice_.backend != nullptr;
  if (!ranking.serving.empty()) {
    if (!passed_over_.empty() && !ranking.passed_over.empty()) ranking.passed_over += "; ";
    ranking.passed_over += passed_over_;
    return ranking;
  }
  if (named) {
    fail(ErrorCode::Unsupported, "backend {} does not serve this call: {}; {}",
         choice_.backend->name(), ranking.passed_over.substr(choice_.backend->name().size() + 2),
         others_that_serve(choice_.backend, &shape));
  }
  fail(ErrorCode::Unsupported, "auto: no backend on {} serves this call ({})", device_.str(),
       passed_over_.empty() ? ranking.passed_over
                            : fmt::format("{}; {}", passed_over_, ranking.passed_over));
}

std::shared_ptr<const Plan> Attention::plan(const Backend& backend, const Shape& shape,
                                            bool& reused) const {
  const PlanKey key{.backend = &backend,
                    .problem = problem_.problem,
                    .shape = backend.plan_key(problem_.problem, shape, options_),
                    .device = device_,
                    .options = options_,
                    .settings = backend.settings()};
  const auto found = PlanCache::instance().get(
      key, [&] { return backend.plan(problem_.problem, key.shape, device_, options_); });
  reused = found.reused;
  return found.plan;
}

std::shared_ptr<const Attention::Resolved> Attention::build(const Shape& shape,
                                                            bool& reused) const {
  const Ranking ranking = ranked(shape);
  std::string failed;
  for (std::size_t i = 0; i < ranking.serving.size(); ++i) {
    const Backend& backend = *ranking.serving[i].backend;
    std::shared_ptr<const Plan> found;
    try {
      found = plan(backend, shape, reused);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      // Nobody asked for this one by name: the next may do. The last one's error is the answer, and
      // so is a mistake of the caller's, which no other backend would mend.
      const auto* own = dynamic_cast<const Error*>(&error);
      const bool of_caller = own != nullptr && own->code() == ErrorCode::InvalidArgument;
      if (of_caller || i + 1 == ranking.serving.size()) throw;
      log(BATTEN_LOG_WARNING, "{}: {} has no plan for this call, auto goes on with the next: {}",
          device_.str(), backend.name(), error.what());
      failed += fmt::format("; {} failed: {}", backend.name(), error.what());
      continue;
    }
    const std::string reason =
        choice_.backend != nullptr
            ? fmt::format("asked for by {}", choice_.source)
            : fmt::format("auto ({}): {}{}{}{}", choice_.source,
                          why_first(std::span(ranking.serving)), failed,
                          ranking.passed_over.empty() ? "" : "; ", ranking.passed_over);
    auto resolved = std::make_shared<Resolved>();
    resolved->shape = shape;
    resolved->plan = std::move(found);
    resolved->receipt = make_receipt(backend.name(), resolved->plan->info(), reason);
    log(BATTEN_LOG_INFO, "{}: {} {} {} ({})", device_.str(), backend.name(),
        resolved->receipt.kernel, resolved->receipt.form, reason);
    return resolved;
  }
  fail(ErrorCode::Internal, "auto: no backend was left to plan this call");
}

std::shared_ptr<const Attention::Resolved> Attention::resolve(const Shape& shape, bool& reused) {
  const std::uint64_t mark =
      hash_of(shape.batch, shape.max_q, shape.max_kv, shape.tokens_q, shape.tokens_kv);
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < kRecent; ++i) {
      if (marks_[i] == mark && recent_[i] && recent_[i]->shape == shape) {
        reused = true;
        return recent_[i];
      }
    }
  }
  auto resolved = build(shape, reused);
  const std::lock_guard lock(mutex_);
  marks_[next_recent_] = mark;
  recent_[next_recent_] = resolved;
  next_recent_ = (next_recent_ + 1) % kRecent;
  return resolved;
}

std::size_t Attention::prepare(const batten_call& raw) {
  const ValidatedCall call = validate_call(problem_, device_, raw, Pointers::ignored);
  const DeviceGuard guard(device_);
  bool reused = false;
  const auto resolved = resolve(call.shape, reused);
  const std::size_t bytes = resolved->plan->info().workspace_size;
  if (raw.workspace == nullptr) {
    const bool capturing = !device_.is_cpu() && device_runtime().is_capturing(call.call.stream);
    // Grows the pool now.
    (void)WorkspacePool::instance().acquire(device_, call.call.stream, bytes, capturing);
  }
  return bytes;
}

void Attention::check_device_lengths(const ValidatedCall& call) const {
  const Shape& s = call.shape;
  std::vector<std::int32_t> copies[4];
  Call host = call.call;
  const std::tuple<Source, const std::int32_t**, std::int64_t> arrays[] = {
      {s.q_lengths, &host.q_lengths, s.batch},
      {s.kv_lengths, &host.kv_lengths, s.batch},
      {s.offsets_q, &host.offsets_q, s.batch + 1},
      {s.offsets_kv, &host.offsets_kv, s.batch + 1}};
  bool any = false;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto [source, pointer, count] = arrays[i];
    if (source != Source::device) continue;
    any = true;
    copies[i].resize(static_cast<std::size_t>(count));
    device_runtime().copy_to_host(copies[i].data(), *pointer,
                                  copies[i].size() * sizeof(std::int32_t), host.stream);
    *pointer = copies[i].data();
  }
  if (!any) return;
  device_runtime().synchronize(host.stream);
  check_lengths(s, host);
}

void Attention::forward(const batten_call& raw, batten_receipt* receipt) {
  ValidatedCall call = validate_call(problem_, device_, raw, Pointers::required);
  const DeviceGuard guard(device_);
  call.call.capturing = !device_.is_cpu() && device_runtime().is_capturing(call.call.stream);
  // Not while a graph is captured: its lengths are not there yet, and waiting would end the
  // capture.
  const bool check = check_ && !device_.is_cpu() && !call.call.capturing;
  if (check) check_device_lengths(call);

  bool reused = false;
  const auto resolved = resolve(call.shape, reused);
  const Plan& plan = *resolved->plan;
  const std::size_t bytes = plan.info().workspace_size;
  // Nothing to write: no sample, or no query row anywhere.
  const bool empty = call.shape.batch == 0 || call.shape.tokens_q == 0;
  if (!empty) {
    const NvtxRange range(resolved->receipt.backend, resolved->receipt.kernel);
    if (raw.workspace != nullptr) {
      if (call.workspace_size < bytes) {
        fail(ErrorCode::InvalidArgument, "workspace: {} bytes given, this call needs {}",
             call.workspace_size, bytes);
      }
      plan.run(call.shape, call.call, call.workspace);
    } else {
      const WorkspaceLease lease =
          WorkspacePool::instance().acquire(device_, call.call.stream, bytes, call.call.capturing);
      plan.run(call.shape, call.call, lease.data());
    }
    if (check) {
      device_runtime().synchronize(call.call.stream);
      device_runtime().check_last_error("forward (BATTEN_CHECK)");
    }
  }
  if (receipt == nullptr) return;
  const std::string remark = plan.remark();
  if (remark.empty()) return copy_receipt(resolved->receipt, reused, *receipt);
  batten_receipt with_remark = resolved->receipt;
  add_remark(with_remark, remark);
  copy_receipt(with_remark, reused, *receipt);
}

}  // namespace batten::impl
