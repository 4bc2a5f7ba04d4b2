// Percentiles and the interval of a median.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace batten::tools {

// sorted[round((n - 1) * q)], ties to even: the rule of the published benchmark (Python's round).
// NaN for no values.
inline double percentile(std::vector<double> values, double q) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(
      std::nearbyint(static_cast<double>(values.size() - 1) * q))];
}

inline double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

struct MedianInterval {
  double median = 0;
  double low = 0;  // 95 % interval; the whole range below 6 values, which cannot carry one
  double high = 0;
};

// The distribution-free interval of a median: order statistics k and n-1-k, with the largest k for
// which P(Binomial(n, 1/2) < k + 1) stays below 2.5 %.
inline MedianInterval median_interval(std::vector<double> values) {
  if (values.empty()) return {std::nan(""), std::nan(""), std::nan("")};
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  std::size_t k = 0;
  if (n > 500) {  // 2^-n underflows before long; the normal approximation is exact enough here
    const auto count = static_cast<double>(n);
    k = static_cast<std::size_t>((count - 1.96 * std::sqrt(count)) / 2) - 1;
    return {percentile(values, 0.5), values[k], values[n - 1 - k]};
  }
  double term = std::pow(0.5, static_cast<double>(n));  // P(X = 0)
  double below = term;
  for (std::size_t i = 1; i < n / 2; ++i) {
    term *= static_cast<double>(n - i + 1) / static_cast<double>(i);
    if (below + term > 0.025) break;
    below += term;
    k = i;
  }
  return {percentile(values, 0.5), values[k], values[n - 1 - k]};
}

}  // namespace batten::tools
