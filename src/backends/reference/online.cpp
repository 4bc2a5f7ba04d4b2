// One pass over the keys in base 2 with a running maximum: the check of the two-pass formulation.
// It shares no arithmetic with it, the rule of the mask included.
#include <cmath>
#include <limits>
#include <vector>

#include "backends/reference/element.hpp"
#include "backends/reference/rows.hpp"

namespace batten::impl {
namespace {

constexpr double kLog2E = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;

// Whether query i sees key j, key by key.
bool sees(const RowCall& row, std::int64_t j) {
  if (row.i >= row.q_length) return false;
  switch (row.mask) {
    case Mask::none:
      return true;
    case Mask::causal:
      return row.q_length - row.i <= row.kv_length - j;  // counted from the ends
    case Mask::causal_top_left:
      return row.i >= j;
  }
  return false;
}

template <class In, class Out>
void attend_row_online(const RowCall& row) {
  const In* q = static_cast<const In*>(row.q) + row.q_first;
  double maximum = -std::numeric_limits<double>::infinity();
  double sum = 0;
  std::vector<double> weighted(static_cast<std::size_t>(row.head_dim_v), 0.0);

  for (std::int64_t j = 0; j < row.kv_length; ++j) {
    if (!sees(row, j)) continue;
    const In* k = static_cast<const In*>(row.k) + (row.k_first + j * row.k_stride);
    const In* v = static_cast<const In*>(row.v) + (row.v_first + j * row.v_stride);
    double product = 0;
    for (int d = row.head_dim; d-- > 0;)
      product = std::fma(to_double(q[d]), to_double(k[d]), product);
    const double logit = product * (row.scale * kLog2E);

    // What was summed so far was relative to the old maximum.
    if (logit > maximum) {
      const double rescale = std::exp2(maximum - logit);
      sum *= rescale;
      for (double& w : weighted) w *= rescale;
      maximum = logit;
    }
    const double p = std::exp2(logit - maximum);
    sum += p;
    for (std::size_t d = 0; d < weighted.size(); ++d) weighted[d] += p * to_double(v[d]);
  }

  // Nothing visible leaves sum at 0; a NaN among the scores leaves a NaN, which is not 0.
  Out* out = static_cast<Out*>(row.out) + row.out_first;
  const double inverse = sum == 0 ? 0 : 1 / sum;
  for (std::size_t d = 0; d < weighted.size(); ++d) store(out[d], weighted[d] * inverse);
  if (row.lse != nullptr) *row.lse = static_cast<float>((maximum + std::log2(sum)) * kLn2);
}

}  // namespace

RowFunction row_function_online(const Problem& problem) {
  return with_element(problem.dtype, [&](auto in) {
    return with_element(problem.out_dtype, [](auto out) -> RowFunction {
      return attend_row_online<decltype(in), decltype(out)>;
    });
  });
}

}  // namespace batten::impl
