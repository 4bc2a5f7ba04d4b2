// From measured times to constants: least squares without negative costs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cost/card.hpp"
#include "cost/prediction.hpp"
#include "support/tune_plan.hpp"

namespace batten::tools {

struct TuneSample {
  TuneCall call;
  cost::Work work;  // what the library's model says the call is made of
  double measured_us = 0;
};

struct Fit {
  cost::Constants constants;
  std::vector<double> fitted_us;  // of each sample
  double median_error = 0;        // |fitted / measured - 1| of the samples
  double worst_error = 0;
};

// `samples` of one kernel, head dim and mask. `gbps` is the memory's speed as other kernels showed
// it, or 0. Nothing where no sample tells of the costs.
std::optional<Fit> fit(std::span<const TuneSample> samples, double gbps);

// x >= 0 that makes the sum of (row . x - 1)^2 smallest; all rows have one length, at most 8.
std::vector<double> least_squares(std::span<const std::vector<double>> rows);

}  // namespace batten::tools
