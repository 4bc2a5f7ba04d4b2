// softmax over a stored row of scores, then the weighted sum of the values.
#include <cmath>
#include <limits>
#include <vector>

#include "backends/reference/element.hpp"
#include "backends/reference/rows.hpp"

namespace batten::impl {
namespace {

// Eight partial sums, so that the compiler may use vectors without reordering a sum.
template <class In>
double dot(const std::vector<double>& q, const In* k) {
  constexpr std::size_t kSums = 8;
  double sums[kSums] = {};
  std::size_t d = 0;
  for (; d + kSums <= q.size(); d += kSums) {
    for (std::size_t n = 0; n < kSums; ++n) sums[n] += q[d + n] * to_double(k[d + n]);
  }
  for (; d < q.size(); ++d) sums[0] += q[d] * to_double(k[d]);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

template <class In, class Out>
void attend_row_two_pass(const RowCall& row) {
  const In* q = static_cast<const In*>(row.q) + row.q_first;
  const In* k = static_cast<const In*>(row.k) + row.k_first;
  const In* v = static_cast<const In*>(row.v) + row.v_first;
  Out* out = static_cast<Out*>(row.out) + row.out_first;

  const std::int64_t visible =
      row.i < row.q_length ? visible_keys(row.mask, row.i, row.q_length, row.kv_length) : 0;
  if (visible == 0) {
    for (int d = 0; d < row.head_dim_v; ++d) store(out[d], 0);
    if (row.lse != nullptr) *row.lse = -std::numeric_limits<float>::infinity();
    return;
  }

  std::vector<double> query;
  query.reserve(static_cast<std::size_t>(row.head_dim));
  for (int d = 0; d < row.head_dim; ++d) query.push_back(to_double(q[d]));

  // scores = scale * q k^T
  std::vector<double> scores(static_cast<std::size_t>(visible));
  double maximum = -std::numeric_limits<double>::infinity();
  for (std::size_t j = 0; j < scores.size(); ++j) {
    scores[j] = row.scale * dot(query, k + static_cast<std::int64_t>(j) * row.k_stride);
    maximum = std::fmax(maximum, scores[j]);
  }

  // p = exp(scores - maximum) / sum
  double sum = 0;
  for (double& score : scores) {
    score = std::exp(score - maximum);
    sum += score;
  }

  // out = p v
  std::vector<double> result(static_cast<std::size_t>(row.head_dim_v), 0.0);
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const In* value = v + static_cast<std::int64_t>(j) * row.v_stride;
    for (std::size_t d = 0; d < result.size(); ++d) result[d] += scores[j] * to_double(value[d]);
  }
  for (std::size_t d = 0; d < result.size(); ++d) store(out[d], result[d] / sum);
  if (row.lse != nullptr) *row.lse = static_cast<float>(maximum + std::log(sum));
}

}  // namespace

RowFunction row_function_two_pass(const Problem& problem) {
  return with_element(problem.dtype, [&](auto in) {
    return with_element(problem.out_dtype, [](auto out) -> RowFunction {
      return attend_row_two_pass<decltype(in), decltype(out)>;
    });
  });
}

}  // namespace batten::impl
