#include "fma_peak.hpp"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fma_peak.cpp"
#include <hwy/foreach_target.h>
// Highway's headers come after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace batten::benchmarks::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Enough independent sums to cover the latency of two units; they fit 16 registers.
constexpr int kSums = 12;

}  // namespace

// `steps` rounds of kSums multiply-adds; gives the number of lanes. `sink` keeps the result alive.
std::size_t multiply_add(std::size_t steps, float* sink) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, sink[0]);
  const auto y = hn::Set(d, sink[1]);
  // All different, or the compiler would compute equal sums once.
  const auto start = [&](int i) { return hn::Set(d, sink[0] + static_cast<float>(i)); };
  auto s0 = start(0), s1 = start(1), s2 = start(2), s3 = start(3), s4 = start(4), s5 = start(5);
  auto s6 = start(6), s7 = start(7), s8 = start(8), s9 = start(9), s10 = start(10), s11 = start(11);
  for (std::size_t i = 0; i < steps; ++i) {
    s0 = hn::MulAdd(s0, x, y);
    s1 = hn::MulAdd(s1, x, y);
    s2 = hn::MulAdd(s2, x, y);
    s3 = hn::MulAdd(s3, x, y);
    s4 = hn::MulAdd(s4, x, y);
    s5 = hn::MulAdd(s5, x, y);
    s6 = hn::MulAdd(s6, x, y);
    s7 = hn::MulAdd(s7, x, y);
    s8 = hn::MulAdd(s8, x, y);
    s9 = hn::MulAdd(s9, x, y);
    s10 = hn::MulAdd(s10, x, y);
    s11 = hn::MulAdd(s11, x, y);
  }
  const auto low = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(s4, s5));
  const auto high = hn::Add(hn::Add(hn::Add(s6, s7), hn::Add(s8, s9)), hn::Add(s10, s11));
  sink[2] = hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
  return hn::Lanes(d);
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }
int sums_of_target() { return kSums; }

}  // namespace batten::benchmarks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace batten::benchmarks {
namespace {

// CPU time of this thread: what a core can do, whoever else wants it.
double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

HWY_EXPORT(multiply_add);
HWY_EXPORT(target_name);
HWY_EXPORT(sums_of_target);

const char* fma_peak_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

double fma_peak_gflops(int threads) {
  constexpr std::size_t kSteps = 2'000'000;
  constexpr int kRuns = 9;
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    std::atomic<int> ready{0};
    std::atomic<std::size_t> lanes{0};
    // Rates are per thread: a late start of one must not count against the others.
    std::vector<double> seconds(static_cast<std::size_t>(threads));
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        ready.fetch_add(1);
        while (ready.load() < threads) {
        }
        float sink[3] = {0.5f, 0.25f, 0};
        const double start = thread_seconds();
        lanes = HWY_DYNAMIC_DISPATCH(multiply_add)(kSteps, sink);
        const double elapsed = thread_seconds() - start;
        seconds[static_cast<std::size_t>(t)] = sink[2] > 0 ? elapsed : 1e9;
      });
    }
    for (auto& worker : workers) worker.join();
    const auto sums = static_cast<double>(HWY_DYNAMIC_DISPATCH(sums_of_target)());
    const double flops =
        2.0 * static_cast<double>(kSteps) * sums * static_cast<double>(lanes.load());
    double rate = 0;
    for (const double s : seconds) rate += flops / s * 1e-9;
    best = std::max(best, rate);
  }
  return best;
}

}  // namespace batten::benchmarks
#endif
