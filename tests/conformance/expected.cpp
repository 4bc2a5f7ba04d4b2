#include "expected.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <set>

#include "device_tensor.hpp"
#include "random.hpp"

namespace batten::conformance {
namespace {

// Rows around multiples of this sit at the edges of every tile height in use.
constexpr std::int64_t kTileEdge = 64;

std::set<std::int64_t> sample_rows(std::int64_t length, std::int64_t wanted, std::uint64_t seed) {
  std::set<std::int64_t> rows;
  if (length <= wanted) {
    for (std::int64_t i = 0; i < length; ++i) rows.insert(i);
    return rows;
  }
  const auto add = [&](std::int64_t row) {
    if (static_cast<std::int64_t>(rows.size()) < wanted)
      rows.insert(std::clamp<std::int64_t>(row, 0, length - 1));
  };
  add(0);
  add(length - 1);
  add((length - 1) / kTileEdge * kTileEdge);
  // Edges spread over the whole sample take at most half, the rest is random.
  const std::int64_t edges = length / kTileEdge;
  const std::int64_t stride =
      std::max<std::int64_t>(1, edges * 4 / std::max<std::int64_t>(wanted, 1));
  for (std::int64_t edge = 1; edge <= edges; edge += stride) {
    add(edge * kTileEdge - 1);
    add(edge * kTileEdge);
  }
  Random random(seed);
  while (static_cast<std::int64_t>(rows.size()) < wanted) add(random.below(length));
  return rows;
}

// One pass over all samples with one V: fills out and, where asked, lse.
class OraclePass {
 public:
  OraclePass(const Problem& problem, double scale, const Geometry& geometry, const Inputs& inputs,
             const Oracle& oracle, bool sampled)
      : geometry_(geometry),
        inputs_(inputs),
        device_(oracle.device),
        dtype_(problem.dtype),
        mask_(problem.mask),
        heads_(problem.num_heads),
        kv_heads_(kv_heads_of(problem)),
        dim_(problem.head_dim),
        sampled_(sampled),
        attention_({.dtype = problem.dtype,
                    .num_heads = problem.num_heads,
                    .num_kv_heads = kv_heads_of(problem),
                    .head_dim = problem.head_dim,
                    .out_dtype = DType::f32,
                    .mask = sampled ? Mask::none : problem.mask,
                    .scale = scale},
                   oracle.device, {.backend = oracle.backend}),
        q_(oracle.device, dtype_, contiguous_layout({geometry.q_rows, heads_, dim_})),
        k_(oracle.device, dtype_, contiguous_layout({geometry.kv_rows, kv_heads_, dim_})),
        v_(oracle.device, dtype_, contiguous_layout({geometry.kv_rows, kv_heads_, dim_})) {
    q_.upload(inputs.q, 0);
    k_.upload(inputs.k, 0);
  }

  void run(std::span<const float> values, const std::vector<ExpectedRow>& rows,
           std::vector<float>& out, std::vector<float>* lse) {
    v_.upload(values, 0);
    out.assign(rows.size() * static_cast<std::size_t>(heads_ * dim_), 0.f);
    if (lse) lse->assign(rows.size() * static_cast<std::size_t>(heads_), -INFINITY);
    for (std::size_t first = 0; first < rows.size();) {
      std::size_t last = first;
      while (last < rows.size() && rows[last].sample == rows[first].sample) ++last;
      const std::span<const ExpectedRow> part{rows.data() + first, last - first};
      const Sample& sample = geometry_.samples[static_cast<std::size_t>(part[0].sample)];
      // With no keys at all the answer is known: what was assigned above.
      if (sample.kv_length > 0) {
        std::vector<float> part_lse;
        const std::vector<float> part_out =
            sampled_ ? run_rows(sample, part, part_lse) : run_sample(sample, part_lse);
        std::copy(part_out.begin(), part_out.end(), out.begin() + at(first, heads_ * dim_));
        if (lse) std::copy(part_lse.begin(), part_lse.end(), lse->begin() + at(first, heads_));
      }
      first = last;
    }
  }

 private:
  static std::ptrdiff_t at(std::size_t row, std::int64_t size) {
    return static_cast<std::ptrdiff_t>(row) * static_cast<std::ptrdiff_t>(size);
  }

  TensorView view(const DeviceTensor& tensor, std::int64_t first_row,
                  std::array<std::int64_t, 4> shape, std::int64_t batch_stride) const {
    const std::array<std::int64_t, 4> strides{batch_stride, shape[2] * shape[3], shape[3], 1};
    return {tensor.rows(first_row, 0).data(), dtype_, shape, strides, device_};
  }

  std::vector<float> run_sample(const Sample& s, std::vector<float>& lse) {
    return forward(view(q_, s.q_begin, {1, s.q_length, heads_, dim_}, 0),
                   view(k_, s.kv_begin, {1, s.kv_length, kv_heads_, dim_}, 0),
                   view(v_, s.kv_begin, {1, s.kv_length, kv_heads_, dim_}, 0), {}, lse);
  }

  std::vector<float> run_rows(const Sample& s, std::span<const ExpectedRow> rows,
                              std::vector<float>& lse) {
    const auto count = static_cast<std::int64_t>(rows.size());
    std::vector<float> gathered;
    std::vector<std::int32_t> keys;
    for (const ExpectedRow& row : rows) {
      const auto source = inputs_.q.begin() + (s.q_begin + row.row) * heads_ * dim_;
      gathered.insert(gathered.end(), source, source + heads_ * dim_);
      keys.push_back(static_cast<std::int32_t>(visible_keys(mask_, row.row, s)));
    }
    // Rows that see every key make one sample, so that the oracle loads a key once for many of
    // them.
    if (std::all_of(keys.begin(), keys.end(), [&](auto n) { return n == s.kv_length; })) {
      DeviceTensor q(device_, dtype_, contiguous_layout({1, count, heads_, dim_}));
      q.upload(gathered, 0);
      return forward(q.view(), view(k_, s.kv_begin, {1, s.kv_length, kv_heads_, dim_}, 0),
                     view(v_, s.kv_begin, {1, s.kv_length, kv_heads_, dim_}, 0), {}, lse);
    }
    DeviceTensor q(device_, dtype_, contiguous_layout({count, 1, heads_, dim_}));
    q.upload(gathered, 0);
    return forward(q.view(), view(k_, s.kv_begin, {count, s.kv_length, kv_heads_, dim_}, 0),
                   view(v_, s.kv_begin, {count, s.kv_length, kv_heads_, dim_}, 0), keys, lse);
  }

  std::vector<float> forward(const TensorView& q, const TensorView& k, const TensorView& v,
                             const std::vector<std::int32_t>& kv_lengths, std::vector<float>& lse) {
    DeviceTensor out(device_, DType::f32,
                     contiguous_layout({q.shape(0), q.shape(1), heads_, dim_}));
    DeviceTensor log_sum(device_, DType::f32, contiguous_layout({q.shape(0), q.shape(1), heads_}));
    CallOptions options{.lse = log_sum.view()};
    if (!kv_lengths.empty()) options.kv_lengths = TensorView(kv_lengths);
    attention_.forward(q, k, v, out.view(), options);
    synchronize(device_);
    lse = log_sum.download();
    return out.download();
  }

  const Geometry& geometry_;
  const Inputs& inputs_;
  Device device_;
  DType dtype_;
  Mask mask_;
  std::int64_t heads_, kv_heads_, dim_;
  bool sampled_;
  Attention attention_;
  DeviceTensor q_, k_, v_;
};

float norm_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return static_cast<float>(std::sqrt(sum));
}

// Keys that have weight have logits near the lse. On the way there the dot product's partial sums
// wander as far as a random walk of its D terms goes: a few times |scale|·‖q‖·‖k‖/√D, which matters
// where large terms cancel.
void measure_logits(const Problem& problem, double scale, const Geometry& geometry,
                    const Inputs& inputs, Expected& expected) {
  constexpr double kWandering = 4;
  const auto dim = static_cast<std::size_t>(problem.head_dim);
  const auto heads = static_cast<std::size_t>(problem.num_heads);
  const auto kv_heads = static_cast<std::size_t>(kv_heads_of(problem));
  const auto vector_of = [&](const std::vector<float>& values, std::size_t count, std::int64_t row,
                             std::size_t head) {
    return std::span(values).subspan((static_cast<std::size_t>(row) * count + head) * dim, dim);
  };
  // The longest key of each sample and head.
  std::vector<float> longest(geometry.samples.size() * kv_heads);
  for (std::size_t b = 0; b < geometry.samples.size(); ++b) {
    const Sample& sample = geometry.samples[b];
    for (std::int64_t j = 0; j < sample.kv_length; ++j)
      for (std::size_t h = 0; h < kv_heads; ++h) {
        const float norm = norm_of(vector_of(inputs.k, kv_heads, sample.kv_begin + j, h));
        float& most = longest[b * kv_heads + h];
        if (norm > most) most = norm;  // false for NaN
      }
  }
  expected.logit.resize(expected.lse.size());
  for (std::size_t r = 0; r < expected.rows.size(); ++r) {
    const auto b = static_cast<std::size_t>(expected.rows[r].sample);
    const std::int64_t row = geometry.samples[b].q_begin + expected.rows[r].row;
    for (std::size_t h = 0; h < heads; ++h) {
      const float key = longest[b * kv_heads + h / (heads / kv_heads)];
      const double walk = kWandering * std::abs(scale) / std::sqrt(static_cast<double>(dim)) *
                          static_cast<double>(norm_of(vector_of(inputs.q, heads, row, h))) *
                          static_cast<double>(key);
      const double lse = std::abs(static_cast<double>(expected.lse[r * heads + h]));
      expected.logit[r * heads + h] =
          static_cast<float>(std::isfinite(lse) ? std::max(lse, walk) : walk);
    }
  }
}

}  // namespace

Expected compute_expected(const Problem& problem, double scale, const Geometry& geometry,
                          const Inputs& inputs, const Oracle& oracle) {
  Expected expected;
  expected.sampled = flops_of(problem, geometry) > oracle.sample_above_flops;
  const auto batch = static_cast<std::int64_t>(geometry.samples.size());
  const std::int64_t rows_each =
      expected.sampled ? std::max<std::int64_t>(1, oracle.sampled_rows / batch) : INT64_MAX;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = geometry.samples[static_cast<std::size_t>(b)].q_length;
    for (const std::int64_t row : sample_rows(length, rows_each, static_cast<std::uint64_t>(b) + 1))
      expected.rows.push_back({b, row});
  }
  OraclePass pass(problem, scale, geometry, inputs, oracle, expected.sampled);
  pass.run(inputs.v, expected.rows, expected.out, &expected.lse);

  std::vector<float> absolute = inputs.v;
  for (float& value : absolute) value = std::abs(value);
  std::vector<float> weighted;
  pass.run(absolute, expected.rows, weighted, nullptr);
  const auto dim = static_cast<std::size_t>(problem.head_dim);
  expected.magnitude.resize(expected.lse.size());
  for (std::size_t i = 0; i < expected.magnitude.size(); ++i)
    expected.magnitude[i] = norm_of(std::span(weighted).subspan(i * dim, dim));
  measure_logits(problem, scale, geometry, inputs, expected);
  return expected;
}

}  // namespace batten::conformance
