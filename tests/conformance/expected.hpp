// What the output should be, by a reference backend.
#pragma once

#include <batten/batten.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "contents.hpp"
#include "geometry.hpp"

namespace batten::conformance {

struct Oracle {
  std::string backend = "reference";
  Device device = Device::cpu();
  // A call of more work is compared on sampled rows only: first, last, tile edges, some at random.
  double sample_above_flops = 1e12;
  std::int64_t sampled_rows = 4096;
};

struct ExpectedRow {
  std::int64_t sample = 0;
  std::int64_t row = 0;  // of the sample
};

struct Expected {
  std::vector<ExpectedRow> rows;
  std::vector<float> out;        // [rows, Hq, D]
  std::vector<float> lse;        // [rows, Hq]
  std::vector<float> magnitude;  // [rows, Hq]: ‖Σ p·|v|‖
  std::vector<float> logit;      // [rows, Hq]: the largest number on the way to a logit that counts
  bool sampled = false;
};

// The oracle never sees the call as it was made: each sample is given to it alone, as a dense,
// contiguous call of exactly its own rows, so that lengths, offsets, gaps and strides are checked
// against code that had none. When sampling, each row is a sample of its own with as many keys as
// it sees, over keys and values shared through a batch stride of 0.
Expected compute_expected(const Problem& problem, double scale, const Geometry& geometry,
                          const Inputs& inputs, const Oracle& oracle);

}  // namespace batten::conformance
