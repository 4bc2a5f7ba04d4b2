#include "contents.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "random.hpp"

namespace batten::conformance {
namespace {

// A NaN reaches at most the rows of its own query tile, and no kernel's tile is taller than this.
constexpr std::int64_t kTallestTile = 256;
// Keys of one step of `jumps`.
constexpr std::int64_t kJumpBlock = 64;
// Logits of successive blocks: up by little, by much, down again.
constexpr std::array kJumps{0.f, 3.f, -4.f, 12.f, 9.f, -60.f, 14.f, 14.5f, -3.f, 40.f, 38.f, 41.f};
constexpr double kHugeLogitVariance = 2.0e4;

// The tensors of a case while they are being filled.
struct Filler {
  const Case& one;
  const Geometry& geometry;
  Inputs& inputs;
  std::int64_t heads = one.problem.num_heads;
  std::int64_t kv_heads = kv_heads_of(one.problem);
  std::int64_t dim = one.problem.head_dim;
  double scale = scale_of(one) != 0 ? scale_of(one) : 1 / std::sqrt(static_cast<double>(dim));

  float* key(std::int64_t row, std::int64_t head) {
    return inputs.k.data() + (row * kv_heads + head) * dim;
  }
  float* value(std::int64_t row, std::int64_t head) {
    return inputs.v.data() + (row * kv_heads + head) * dim;
  }

  // Calls body(sample, key index, row, head) for every key of every sample.
  template <class Body>
  void each_key(Body&& body) {
    for (const Sample& sample : geometry.samples)
      for (std::int64_t j = 0; j < sample.kv_length; ++j)
        for (std::int64_t h = 0; h < kv_heads; ++h) body(sample, j, sample.kv_begin + j, h);
  }

  static void multiply(std::vector<float>& values, double factor) {
    for (float& value : values) value *= static_cast<float>(factor);
  }

  void probe() {
    each_key([&](const Sample& sample, std::int64_t j, std::int64_t row, std::int64_t h) {
      const std::int64_t keys_per_column = (sample.kv_length + dim - 1) / dim;
      std::fill_n(value(row, h), dim, 0.f);
      value(row, h)[j / keys_per_column] = 1;
    });
  }

  void equal_logits() {
    each_key([&](const Sample& sample, std::int64_t, std::int64_t row, std::int64_t h) {
      std::copy_n(key(sample.kv_begin, h), dim, key(row, h));
    });
  }

  void jumps() {
    for (float& value : inputs.q) value = 1 + 0.1f * value;
    const auto step = static_cast<float>(1 / (std::abs(scale) * static_cast<double>(dim)));
    each_key([&](const Sample& sample, std::int64_t j, std::int64_t row, std::int64_t h) {
      // Odd heads see the blocks in the opposite order.
      const std::int64_t block = (h % 2 ? sample.kv_length - 1 - j : j) / kJumpBlock;
      const float logit = kJumps[static_cast<std::size_t>(block) % kJumps.size()];
      float* k = key(row, h);
      for (std::int64_t d = 0; d < dim; ++d) k[d] = logit * step + 0.1f * k[d];
    });
  }

  void fill() {
    switch (one.contents) {
      case Contents::randn:
        break;
      case Contents::probe:
        probe();
        break;
      case Contents::peaked:
        multiply(inputs.q, 6);
        break;
      case Contents::huge_logits: {
        const double variance =
            kHugeLogitVariance / (std::abs(scale) * std::sqrt(static_cast<double>(dim)));
        multiply(inputs.q, std::sqrt(variance));
        multiply(inputs.k, std::sqrt(variance));
        break;
      }
      case Contents::equal_logits:
        equal_logits();
        break;
      case Contents::jumps:
        jumps();
        break;
      case Contents::tiny:
        multiply(inputs.q, 1e-4);
        multiply(inputs.k, 1e-4);
        multiply(inputs.v, one.problem.dtype == DType::f16 ? 1e-2 : 1e-30);
        break;
      case Contents::large_values:
        multiply(inputs.v, one.problem.dtype == DType::f16 ? 1.8e4 : 1e30);
        break;
      case Contents::nan_key:
      case Contents::nan_value:
        if (const auto planted = planted_nan(one, geometry)) {
          const Sample& sample = geometry.samples[static_cast<std::size_t>(planted->sample)];
          const std::int64_t row = sample.kv_begin + planted->key;
          const float nan = std::numeric_limits<float>::quiet_NaN();
          if (one.contents == Contents::nan_key)
            key(row, 0)[dim / 2] = nan;
          else
            std::fill_n(value(row, 0), dim, nan);
        }
        break;
    }
  }
};

// Makes the samples' (heads') keys or values what one memory location for all of them would hold.
void share(const Case& one, std::int64_t kv_heads, std::int64_t dim, std::vector<float>& values) {
  const std::int64_t row = kv_heads * dim;
  if (one.strides == Strides::shared_batch) {
    const std::int64_t sample = one.kv * row;
    for (std::int64_t b = 1; b < one.batch; ++b)
      std::copy_n(values.begin(), sample, values.begin() + b * sample);
  }
  if (one.strides == Strides::shared_heads) {
    for (auto at = values.begin(); at != values.end(); at += row)
      for (std::int64_t h = 1; h < kv_heads; ++h) std::copy_n(at, dim, at + h * dim);
  }
}

// Overwrites rows that no sample owns.
void spoil(std::vector<float>& values, const std::vector<bool>& owned, std::int64_t row,
           float garbage) {
  for (std::size_t i = 0; i < owned.size(); ++i)
    if (!owned[i]) std::fill_n(values.begin() + static_cast<std::int64_t>(i) * row, row, garbage);
}

}  // namespace

float garbage_value(Garbage garbage) noexcept {
  switch (garbage) {
    case Garbage::nan:
      return std::numeric_limits<float>::quiet_NaN();
    case Garbage::infinity:
      return std::numeric_limits<float>::infinity();
    case Garbage::finite:
      break;
  }
  return 1000;  // large enough to be seen through any mask that leaks
}

Inputs make_inputs(const Case& one, const Geometry& geometry, Garbage garbage) {
  Inputs inputs;
  Filler filler{one, geometry, inputs};
  const std::int64_t q_row = filler.heads * filler.dim;
  const std::int64_t kv_row = filler.kv_heads * filler.dim;
  inputs.q.resize(static_cast<std::size_t>(geometry.q_rows * q_row));
  inputs.k.resize(static_cast<std::size_t>(geometry.kv_rows * kv_row));
  inputs.v.resize(inputs.k.size());
  std::uint64_t seed = seed_of(one.name);
  for (std::vector<float>* values : {&inputs.q, &inputs.k, &inputs.v}) {
    Random random(seed++);
    for (float& value : *values) value = random.normal();
  }
  filler.fill();
  share(one, filler.kv_heads, filler.dim, inputs.k);
  share(one, filler.kv_heads, filler.dim, inputs.v);

  std::vector<bool> q_owned(static_cast<std::size_t>(geometry.q_rows));
  std::vector<bool> kv_owned(static_cast<std::size_t>(geometry.kv_rows));
  for (const Sample& s : geometry.samples) {
    std::fill_n(q_owned.begin() + s.q_begin, s.q_length, true);
    std::fill_n(kv_owned.begin() + s.kv_begin, s.kv_length, true);
    if (one.strides == Strides::shared_batch)  // what one sample sees is no padding for the others
      for (std::int64_t b = 0; b < one.batch; ++b)
        std::fill_n(kv_owned.begin() + b * one.kv, s.kv_length, true);
  }
  spoil(inputs.q, q_owned, q_row, garbage_value(garbage));
  spoil(inputs.k, kv_owned, kv_row, garbage_value(garbage));
  spoil(inputs.v, kv_owned, kv_row, garbage_value(garbage));
  return inputs;
}

std::optional<Planted> planted_nan(const Case& one, const Geometry& geometry) {
  if (one.contents != Contents::nan_key && one.contents != Contents::nan_value) return {};
  std::optional<Planted> planted;
  std::int64_t most = 0;
  for (std::size_t b = 0; b < geometry.samples.size(); ++b) {
    const Sample& sample = geometry.samples[b];
    if (sample.q_length * sample.kv_length <= most) continue;
    most = sample.q_length * sample.kv_length;
    planted = {static_cast<std::int64_t>(b), sample.kv_length / 2};
  }
  return planted;
}

NanRule nan_rule(const Case& one, const Geometry& geometry, std::int64_t sample, std::int64_t row,
                 int head) {
  const auto planted = planted_nan(one, geometry);
  const int group = one.problem.num_heads / kv_heads_of(one.problem);
  if (!planted || planted->sample != sample || head >= group) return NanRule::never;
  const Sample& s = geometry.samples[static_cast<std::size_t>(sample)];
  if (visible_keys(one.problem.mask, row, s) > planted->key) return NanRule::must;
  const std::int64_t below = std::min(row + kTallestTile, s.q_length - 1);
  return visible_keys(one.problem.mask, below, s) > planted->key ? NanRule::may : NanRule::never;
}

}  // namespace batten::conformance
