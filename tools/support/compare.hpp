// Comparing outputs: with the float64 reference under the design's two bounds, and with numbers
// that somebody recorded.
#pragma once

#include <batten/batten.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bounds.hpp"
#include "cases.hpp"
#include "contents.hpp"
#include "expected.hpp"
#include "geometry.hpp"

namespace batten::tools {

// A dense call as the conformance suite describes it.
conformance::Case dense_case(const Problem& problem, std::int64_t batch, std::int64_t q,
                             std::int64_t kv, std::vector<std::int32_t> q_lengths = {},
                             std::vector<std::int32_t> kv_lengths = {});

// The reference for results of `device`: on that device where it is available there, else on the
// CPU, which compares sampled rows from `cpu_flops` on rather than take minutes.
conformance::Oracle oracle_for(Device device, double cpu_flops);

// Compares every row of a dense call's output; rows past q_lengths must be 0 with lse -inf. `lse`
// may be empty.
conformance::BoundsReport compare_with_reference(const conformance::Case& call,
                                                 const conformance::Inputs& inputs,
                                                 const std::vector<float>& out,
                                                 const std::vector<float>& lse,
                                                 const conformance::Oracle& oracle);

// The reference's rows of one call, to hold several outputs against.
class ReferenceRows {
 public:
  ReferenceRows(const conformance::Case& call, const conformance::Inputs& inputs,
                const conformance::Oracle& oracle);

  // Of the output [B, Sq, Hq, D], over the rows compared.
  double rel_error(const std::vector<float>& out) const;

 private:
  Problem problem_;
  conformance::Geometry geometry_;
  conformance::Expected expected_;
};

// How far `got` is from `recorded`.
struct Agreement {
  double rel_error = 0;  // norm of the difference over norm of `recorded`; NaN if either has one
  double largest = 0;    // absolute difference
};
Agreement compare_values(const std::vector<float>& got, const std::vector<float>& recorded);

}  // namespace batten::tools
