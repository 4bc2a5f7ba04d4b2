// Times several backends on one case, in turns.
#pragma once

#include <batten/batten.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/bench_case.hpp"
#include "support/bench_inputs.hpp"
#include "support/timer.hpp"

namespace batten::tools {

// One backend (or form of one) of the comparison.
struct Contender {
  std::string name;  // as named on the command line: "cudnn:packed"
  std::unique_ptr<Attention> attention;
};

// What scope `sustained` adds.
struct Sustained {
  std::optional<double> sm_clock_mhz, watts, joules_per_call;
};

struct Measurement {
  std::vector<double> samples_ms;  // per call
  std::vector<double> round_ms;    // the median of each round's samples
  std::size_t calls_per_sample = 1;
  Receipt receipt;
  std::optional<double> host_us;  // see measure_host_us()
  std::optional<Sustained> sustained;
};

// Measures every contender on `inputs`. The plan exists and the scratch is reserved before timing
// starts; then the contenders take turns, `rounds` times, in an order that shifts by one each
// round. Stops early when interrupted, after whole rounds: round_ms then has fewer entries.
std::vector<Measurement> measure(const BenchOptions& options,
                                 const std::vector<Contender*>& contenders,
                                 const BenchInputs& inputs, Device device, Timer& timer);

}  // namespace batten::tools
