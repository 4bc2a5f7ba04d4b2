// How one row of two partial results is combined, for the CPU and the device.
#pragma once

#include <cmath>
#include <limits>

#if defined(__CUDACC__)
#define BATTEN_HOST_DEVICE __host__ __device__
#else
#define BATTEN_HOST_DEVICE
#endif

namespace batten::impl {

enum class RowMerge { keep, take_second, clear, combine };

struct MergeWeights {
  RowMerge action;
  float first, second;  // combine: out = first * out + second * out2
  float lse;            // of the result
};

BATTEN_HOST_DEVICE inline MergeWeights merge_weights(float a, float b) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (b == -kInfinity) return {a == b ? RowMerge::clear : RowMerge::keep, 1, 0, a};
  if (a == -kInfinity) return {RowMerge::take_second, 0, 1, b};
  // fmax passes over a NaN; the exponential of that difference is NaN then, as it should be.
  const float maximum = fmaxf(a, b);
  const float first = expf(a - maximum);
  const float second = expf(b - maximum);
  const float sum = first + second;
  // Two NaN weights where the maximum is +inf, but the logarithm of the sum is known.
  const float lse = maximum == kInfinity && a == a && b == b ? kInfinity : maximum + logf(sum);
  return {RowMerge::combine, first / sum, second / sum, lse};
}

}  // namespace batten::impl
