#include "support/bench_runner.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "support/interrupt.hpp"
#include "support/nvml.hpp"
#include "support/statistics.hpp"

namespace batten::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMinGraphCalls = 20;
constexpr int kHostCalls = 50;
// A turn of scope `sustained` queues work in pieces of about this length, and reads the meter
// between.
constexpr double kPieceMs = 50;
constexpr std::chrono::milliseconds kMeterInterval{20};

// One contender's calls over the rotating inputs.
class Caller {
 public:
  Caller(Contender& contender, const BenchInputs& inputs, void* stream)
      : contender_(contender), inputs_(inputs), stream_(stream) {}

  Receipt operator()() { return call(next_++); }
  Receipt call(std::size_t set) {
    const BenchInputs::Set& in = inputs_[set];
    return contender_.attention->forward(in.q, in.k, in.v, in.out, bench_call(stream_));
  }
  void prepare() {
    const BenchInputs::Set& in = inputs_[0];
    contender_.attention->prepare(in.q, in.k, in.v, in.out, bench_call(stream_));
  }

 private:
  Contender& contender_;
  const BenchInputs& inputs_;
  void* stream_;
  std::size_t next_ = 0;
};

// Microseconds that the host spends in one forward. On a GPU: until it returns, with the stream
// idle before it. On the CPU, where forward does the work itself: of a call without queries, which
// leaves only batten's own part.
double measure_host_us(Contender& contender, const BenchInputs& inputs, Device device,
                       Timer& timer) {
  const BenchInputs::Set& in = inputs[0];
  const auto empty = [](const TensorView& t) {
    return TensorView(t.data(), t.dtype(), {t.shape(0), 0, t.shape(2), t.shape(3)});
  };
  const TensorView q = device.is_cpu() ? empty(in.q) : in.q;
  const TensorView out = device.is_cpu() ? empty(in.out) : in.out;
  std::vector<double> samples;
  for (int i = 0; i < kHostCalls && !interrupted(); ++i) {
    timer.synchronize();
    const Clock::time_point start = Clock::now();
    contender.attention->forward(q, in.k, in.v, out, bench_call(timer.stream()));
    samples.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  timer.synchronize();
  return median(samples);
}

// A turn of the scopes `call` and `graph`: `count` samples of `run`, in ms per call.
std::vector<double> timed(Timer& timer, int count, std::size_t calls,
                          const std::function<void()>& run) {
  for (int i = 0; i < count && !interrupted(); ++i) {
    timer.start();
    run();
    timer.stop();
  }
  std::vector<double> samples = timer.take_ms();
  for (double& sample : samples) sample /= static_cast<double>(calls);
  return samples;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// A turn of the scope `sustained`.
struct Turn {
  std::vector<double> samples_ms;
  std::vector<double> clocks_mhz;
  std::vector<double> watts;
  std::optional<double> joules;
  std::size_t calls = 0;
};

// Reads the meter while a turn runs.
class MeterThread {
 public:
  MeterThread(const PowerMeter* meter, Turn& turn) {
    if (meter == nullptr) return;
    thread_ = std::jthread([meter, &turn](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (const auto clock = meter->sm_clock_mhz()) turn.clocks_mhz.push_back(*clock);
        if (const auto watts = meter->watts()) turn.watts.push_back(*watts);
        std::this_thread::sleep_for(kMeterInterval);
      }
    });
  }

 private:
  std::jthread thread_;
};

Turn sustained_turn(const BenchOptions& options, Timer& timer, const PowerMeter* meter,
                    double estimate_ms, Caller& caller) {
  Turn turn;
  const auto piece =
      static_cast<std::size_t>(std::clamp(kPieceMs / std::max(estimate_ms, 1e-3), 1.0, 1000.0));
  const auto before = meter != nullptr ? meter->joules() : std::nullopt;
  {
    const MeterThread reader(meter, turn);
    const Clock::time_point end =
        Clock::now() +
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
    while (Clock::now() < end && !interrupted()) {
      // Two pieces are queued at once, so that the device never waits for the host.
      for (int half = 0; half < 2; ++half) {
        timer.start();
        for (std::size_t i = 0; i < piece; ++i) caller();
        timer.stop();
        turn.calls += piece;
      }
      for (const double ms : timer.take_ms())
        turn.samples_ms.push_back(ms / static_cast<double>(piece));
    }
  }
  const auto after = meter != nullptr ? meter->joules() : std::nullopt;
  if (before && after) turn.joules = *after - *before;
  return turn;
}

void append(std::vector<double>& target, const std::vector<double>& values) {
  target.insert(target.end(), values.begin(), values.end());
}

// What a contender runs in its turns, and what that has given so far.
struct Lane {
  Caller caller;
  std::function<void()> run;  // one sample
  Measurement result;
  double estimate_ms = 0;  // of one call, scope sustained
  Turn total;
};

Lane make_lane(const BenchOptions& options, Contender& contender, const BenchInputs& inputs,
               Timer& timer) {
  Lane lane{.caller = Caller(contender, inputs, timer.stream()),
            .run = {},
            .result = {},
            .estimate_ms = 0,
            .total = {}};
  lane.caller.prepare();
  lane.result.receipt = lane.caller();
  for (int i = 0; i < options.warmups && !interrupted(); ++i) lane.result.receipt = lane.caller();
  timer.synchronize();
  return lane;
}

void set_up_samples(const BenchOptions& options, const BenchInputs& inputs, Timer& timer,
                    Lane& lane) {
  if (options.scope == Scope::graph) {
    const std::size_t calls = std::max(kMinGraphCalls, inputs.size());
    lane.result.calls_per_sample = calls;
    lane.run = timer.record([&lane, calls] {
      for (std::size_t i = 0; i < calls; ++i) lane.caller.call(i);
    });
    lane.run();  // the first launch of a graph is slower
    timer.synchronize();
  } else {
    lane.run = [&lane] { lane.caller(); };
  }
  if (options.scope == Scope::sustained) lane.estimate_ms = median(timed(timer, 3, 1, lane.run));
}

void take_turn(const BenchOptions& options, int count, const PowerMeter* meter, Timer& timer,
               Lane& lane) {
  Measurement& result = lane.result;
  std::vector<double> samples;
  if (options.scope == Scope::sustained) {
    Turn turn = sustained_turn(options, timer, meter, lane.estimate_ms, lane.caller);
    samples = std::move(turn.samples_ms);
    append(lane.total.clocks_mhz, turn.clocks_mhz);
    append(lane.total.watts, turn.watts);
    lane.total.calls += turn.calls;
    if (turn.joules) lane.total.joules = lane.total.joules.value_or(0) + *turn.joules;
  } else {
    samples = timed(timer, count, result.calls_per_sample, lane.run);
  }
  if (samples.empty()) return;
  append(result.samples_ms, samples);
  result.round_ms.push_back(median(samples));
}

Sustained summary(const Turn& total) {
  Sustained s;
  if (!total.clocks_mhz.empty()) s.sm_clock_mhz = mean(total.clocks_mhz);
  if (!total.watts.empty()) s.watts = mean(total.watts);
  if (total.joules && total.calls > 0)
    s.joules_per_call = *total.joules / static_cast<double>(total.calls);
  return s;
}

}  // namespace

std::vector<Measurement> measure(const BenchOptions& options,
                                 const std::vector<Contender*>& contenders,
                                 const BenchInputs& inputs, Device device, Timer& timer) {
  const std::unique_ptr<PowerMeter> meter =
      options.scope == Scope::sustained ? PowerMeter::open(pci_bus_id(device)) : nullptr;
  std::vector<Lane> lanes;
  lanes.reserve(contenders.size());  // lanes are captured by address below
  for (Contender* contender : contenders) {
    lanes.push_back(make_lane(options, *contender, inputs, timer));
    set_up_samples(options, inputs, timer, lanes.back());
  }
  for (int round = 0; round < options.rounds && !interrupted(); ++round) {
    // The repeats are dealt out evenly; the first rounds take what is left over.
    const int count =
        options.repeats / options.rounds + (round < options.repeats % options.rounds ? 1 : 0);
    for (std::size_t i = 0; i < lanes.size() && !interrupted(); ++i) {
      Lane& lane = lanes[(i + static_cast<std::size_t>(round)) % lanes.size()];
      take_turn(options, count, meter.get(), timer, lane);
    }
  }
  std::vector<Measurement> results;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (!interrupted())
      lanes[i].result.host_us = measure_host_us(*contenders[i], inputs, device, timer);
    if (options.scope == Scope::sustained) lanes[i].result.sustained = summary(lanes[i].total);
    results.push_back(std::move(lanes[i].result));
  }
  return results;
}

}  // namespace batten::tools
