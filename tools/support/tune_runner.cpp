#include "support/tune_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

#include "support/interrupt.hpp"
#include "support/normal.hpp"
#include "support/statistics.hpp"

namespace batten::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kInputBytes = 1536 * kMiB;
constexpr std::size_t kOutputBytes = 512 * kMiB;
// The random numbers repeat after this many bytes. No tensor begins a multiple of it after another,
// so that queries and keys are not the same numbers.
constexpr std::size_t kPeriod = 61 * kMiB + 256;
constexpr std::size_t kAlignment = 256;
// Together the slices exceed the cache this many times.
constexpr std::size_t kSlicesPerCache = 3;
constexpr std::size_t kMostSets = 20;
constexpr int kReplays = 9;
// What a replay should last, so that its launch does not count.
constexpr double kReplayMs = 1.0;
// Power limits act within some tenths of a second.
constexpr double kPowerMs = 300;
// Beyond this a backend is not among those that `auto` would take.
constexpr double kFarSlower = 2.5;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

const Json* candidate_in(const Json& answer, const std::string& backend) {
  const std::string name = backend.substr(0, backend.find(':'));
  for (const Json& c : answer["candidates"]) {
    if (c.value("backend", "") == name) return &c;
  }
  return nullptr;
}

bool same_kernel(const TuneSample& a, const TuneSample& b) {
  return a.call.kernel == b.call.kernel && a.call.head_dim == b.call.head_dim &&
         a.call.causal() == b.call.causal();
}

}  // namespace

std::vector<TuneSample> measure_calls(const std::vector<TuneCall>& calls, const TuneSources& from) {
  std::vector<TuneSample> samples;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    throw_if_interrupted();
    from.progress(i, calls.size(), calls[i]);
    const auto work = from.work(calls[i]);
    if (!work) continue;
    const auto us = from.time(calls[i]);
    if (us && *us > 0) samples.push_back({calls[i], *work, *us});
  }
  return samples;
}

std::vector<TunedKernel> fit_kernels(const std::vector<TuneSample>& samples) {
  std::vector<TunedKernel> kernels;
  for (const TuneSample& sample : samples) {
    const auto found = std::ranges::find_if(
        kernels, [&](const TunedKernel& k) { return same_kernel(k.samples.front(), sample); });
    if (found == kernels.end()) {
      kernels.push_back({{sample}, {}});
    } else {
      found->samples.push_back(sample);
    }
  }
  // The fastest that any kernel read memory bounds those that no call showed at their own limit.
  double gbps = 0;
  for (const TunedKernel& kernel : kernels) {
    if (const auto first = fit(kernel.samples, 0)) gbps = std::max(gbps, first->constants.gbps);
  }
  std::vector<TunedKernel> fitted;
  for (TunedKernel& kernel : kernels) {
    auto result = fit(kernel.samples, gbps);
    if (!result) continue;
    kernel.fit = std::move(*result);
    fitted.push_back(std::move(kernel));
  }
  return fitted;
}

std::vector<cost::Measured> measure_shapes(const std::vector<cost::MeasuredShape>& shapes,
                                           const std::vector<std::string>& backends,
                                           const std::function<Json(const TuneCall&)>& explain,
                                           const TuneSources& from) {
  std::vector<cost::Measured> all;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    throw_if_interrupted();
    from.progress(i, shapes.size(), call_of(shapes[i], backends.front()));
    const Json answer = explain(call_of(shapes[i], ""));
    double best = INFINITY;
    const auto predicted = [&](const std::string& backend) {
      const Json* c = candidate_in(answer, backend);
      return c != nullptr && c->value("serves", false) ? c->value("predicted_us", 0.0) : INFINITY;
    };
    for (const std::string& backend : backends) best = std::min(best, predicted(backend));
    cost::Measured measured{shapes[i], {}};
    for (const std::string& backend : backends) {
      const double us = predicted(backend);
      if (std::isinf(us) || us > kFarSlower * best) continue;
      if (const auto time = from.time(call_of(shapes[i], backend)))
        measured.us.emplace_back(backend, *time);
    }
    if (!measured.us.empty()) all.push_back(std::move(measured));
  }
  return all;
}

Json explain_call(const TuneCall& call, Device device) {
  const Problem p = call.problem();
  const auto view = [&](std::int64_t rows, int heads) {
    return TensorView(nullptr, p.dtype, {call.batch, rows, heads, call.head_dim}, device);
  };
  const TensorView q = view(call.queries, call.num_heads);
  const TensorView kv = view(call.keys, call.num_kv_heads);
  // "auto", not "": BATTEN_BACKEND is not the question here.
  return Json::parse(explain(p, device, q, kv, kv, q, {.padding_is_finite = true},
                             {.backend = call.backend.empty() ? "auto" : call.backend}));
}

std::optional<cost::Work> work_in(const Json& answer, const TuneCall& call) {
  const Json* candidate = candidate_in(answer, call.backend);
  if (candidate == nullptr || !candidate->value("serves", false)) return std::nullopt;
  // A prediction by the constants of another kernel would be of other counts.
  if (candidate->value("kernel", "").substr(0, call.kernel.size() + 1) != call.kernel + " ")
    return std::nullopt;
  cost::Work work;
  work.flops = answer.value("flops", 0.0);
  work.bytes = answer.value("bytes", 0.0);
  for (const Json& term : candidate->value("terms", Json::array())) {
    const std::string name = term.value("name", "");
    const double count = term.value("count", 0.0);
    if (name == "launches") work.launches = count;
    if (name == "tiles") work.starts = count;
    if (name == "key blocks") work.blocks = count;
    if (name == "parts") work.parts = count;
    if (name == "merges") work.merges = count;
  }
  return work;
}

TuneTimer::TuneTimer(Device device)
    : device_(device),
      timer_(make_timer(device)),
      cache_bytes_(cache_bytes(device)),
      inputs_(device, kInputBytes),
      outputs_(device, kOutputBytes) {
  std::vector<std::byte> numbers(kPeriod);
  fill_normal(numbers, bf16, 0);
  for (std::size_t at = 0; at < kInputBytes; at += kPeriod) {
    throw_if_interrupted();
    inputs_.upload(std::span(numbers).first(std::min(kPeriod, kInputBytes - at)), at);
  }
}

std::vector<TuneTimer::Set> TuneTimer::sets_of(const TuneCall& call) const {
  const auto bytes = [&](std::int64_t rows, int heads) {
    return aligned(static_cast<std::size_t>(call.batch * rows * heads * call.head_dim) *
                   size_of(bf16));
  };
  const std::size_t q_bytes = bytes(call.queries, call.num_heads);
  const std::size_t kv_bytes = bytes(call.keys, call.num_kv_heads);
  const std::size_t one = q_bytes + 2 * kv_bytes;
  const std::size_t fitting = std::min(kInputBytes / one, kOutputBytes / q_bytes);
  const std::size_t wanted = kSlicesPerCache * cache_bytes_ / (one + q_bytes) + 1;
  std::vector<Set> sets;
  for (std::size_t i = 0; i < std::min({fitting, wanted, kMostSets}); ++i) {
    const auto view = [&](const conformance::DeviceMemory& memory, std::size_t at,
                          std::int64_t rows, int heads) {
      return TensorView(memory.data() + at, bf16, {call.batch, rows, heads, call.head_dim},
                        device_);
    };
    const std::size_t at = i * one;
    sets.push_back({.q = view(inputs_, at, call.queries, call.num_heads),
                    .k = view(inputs_, at + q_bytes, call.keys, call.num_kv_heads),
                    .v = view(inputs_, at + q_bytes + kv_bytes, call.keys, call.num_kv_heads),
                    .out = view(outputs_, i * q_bytes, call.queries, call.num_heads)});
  }
  return sets;
}

Attention& TuneTimer::attention_of(const TuneCall& call) {
  const std::string key = fmt::format("{} {} {} {} {}", call.backend, call.num_heads,
                                      call.num_kv_heads, call.head_dim, call.causal());
  auto& attention = attentions_[key];
  if (!attention) {
    attention =
        std::make_unique<Attention>(call.problem(), device_, Options{.backend = call.backend});
  }
  return *attention;
}

double TuneTimer::replay_us(const std::function<void()>& replay, std::size_t calls,
                            double busy_ms) {
  const Clock::time_point start = Clock::now();
  do {  // the first launch of a graph is slower, and a power limit takes its time
    replay();
    timer_->synchronize();
  } while (std::chrono::duration<double, std::milli>(Clock::now() - start).count() < busy_ms &&
           !interrupted());
  for (int i = 0; i < kReplays; ++i) {
    timer_->start();
    replay();
    timer_->stop();
  }
  return median(timer_->take_ms()) * 1e3 / static_cast<double>(calls);
}

std::optional<double> TuneTimer::operator()(const TuneCall& call) try {
  const std::vector<Set> sets = sets_of(call);
  if (sets.empty()) return std::nullopt;
  Attention& attention = attention_of(call);
  const auto run = [&](std::size_t i) {
    const Set& s = sets[i % sets.size()];
    attention.forward(s.q, s.k, s.v, s.out,
                      {.padding_is_finite = true, .stream = timer_->stream()});
  };
  run(0);
  timer_->synchronize();
  timer_->start();
  run(1);
  timer_->stop();
  const double once_ms = std::max(timer_->take_ms().front(), 1e-3);
  const auto calls = static_cast<std::size_t>(
      std::clamp(std::ceil(kReplayMs / once_ms), 2.0, static_cast<double>(kMostSets)));
  const auto replay = timer_->record([&] {
    for (std::size_t i = 0; i < calls; ++i) run(i);
  });
  return replay_us(replay, calls, call.purpose == Purpose::power ? kPowerMs : 0);
} catch (const Error& error) {
  if (error.code() == ErrorCode::Device) throw;
  refusals_[cost::kernel_name(call.kernel, call.head_dim, call.causal())] = error.what();
  return std::nullopt;
}

}  // namespace batten::tools
