// The two matrix products, blocked in registers. Included once per SIMD target.
//
// Both multiply kRows rows of a small operand, whose values are broadcast, with a panel of query
// rows that lie in vectors side by side:
//   scores[key][query] = sum over d:   K[key][d]  * Q[d][query]
//   out   [d][query]  += sum over key: V[key][d]  * P[key][query]
#if defined(BATTEN_CPU_PRODUCT_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef BATTEN_CPU_PRODUCT_INL_HPP
#undef BATTEN_CPU_PRODUCT_INL_HPP
#else
#define BATTEN_CPU_PRODUCT_INL_HPP
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "backends/cpu/pack-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace batten::impl::cpu::HWY_NAMESPACE {
namespace {

// Sums live in kRows x kVectors registers; with 3 vectors of the panel and one broadcast value that
// is 28 of 32, or 16 of 16.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kRows = 8;
#else
constexpr int kRows = 4;
#endif
constexpr int kMaxVectors = 3;
static_assert(kMaxVectors * kLanes <= kMaxPanelRows);
static_assert(kHeadDimStep % kRows == 0 && kKeyTile % kRows == 0);

template <class Math, int kVectors>
struct Sums {
  Vector at[kRows][kVectors];

#if HWY_TARGET == HWY_NEON
  // The compiler's own lacks the target's instructions, which the constructor of vectors asks for.
  HWY_INLINE Sums() {}
#endif

  HWY_INLINE void clear() {
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(3)
      for (int n = 0; n < kVectors; ++n) at[r][n] = hn::Zero(Floats());
    }
  }

  // Adds one step: the outer product of kRows values, `stride` apart, and one row of the panel.
  HWY_INLINE void add(const float* HWY_RESTRICT values, std::int64_t stride,
                      const float* HWY_RESTRICT panel) {
    const Floats df;
    Vector row[kVectors];
    HWY_UNROLL(3)
    for (int n = 0; n < kVectors; ++n) row[n] = hn::Load(df, panel + n * kLanes);
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const auto value = hn::Set(df, values[r * stride]);
      HWY_UNROLL(3)
      for (int n = 0; n < kVectors; ++n) at[r][n] = Math::multiply_add(value, row[n], at[r][n]);
    }
  }
};

// A tile's keys as rows of elements.
struct Keys {
  const float* first;
  std::int64_t stride;
};

// scores[key][lane] for `keys` keys (a multiple of kRows) of `dim` elements, and the running
// maximum of each lane.
template <class Math, int kVectors>
HWY_NOINLINE void multiply_keys(Keys k, std::int64_t dim, std::int64_t keys,
                                const float* HWY_RESTRICT queries, float* HWY_RESTRICT scores,
                                float* HWY_RESTRICT maximum) {
  const Floats df;
  for (std::int64_t key = 0; key < keys; key += kRows) {
    Sums<Math, kVectors> sums;
    sums.clear();
    const float* rows = k.first + key * k.stride;
    for (std::int64_t d = 0; d < dim; ++d) {
      sums.add(rows + d, k.stride, queries + d * kVectors * kLanes);
    }
    float* to = scores + key * kVectors * kLanes;
    HWY_UNROLL(3)
    for (int n = 0; n < kVectors; ++n) {
      auto most = hn::Load(df, maximum + n * kLanes);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        most = hn::Max(most, sums.at[r][n]);
        hn::Store(sums.at[r][n], df, to + (r * kVectors + n) * kLanes);
      }
      hn::Store(most, df, maximum + n * kLanes);
    }
  }
}

// The rows of the next tile, asked for little by little while this one is computed: from L3 a tile
// would otherwise take an eighth of the time.
struct NextTile {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  std::int64_t k_stride = 0, v_stride = 0;  // bytes
  std::int64_t k_bytes = 0, v_bytes = 0;    // of a row
  std::int64_t rows = 0;                    // not yet asked for
  std::int64_t rows_per_step = 0;

  HWY_INLINE void step() {
    for (std::int64_t n = std::min(rows, rows_per_step); n > 0; --n) {
      for (std::int64_t i = 0; i < k_bytes; i += kLine) __builtin_prefetch(k + i, 0, kIntoL2);
      for (std::int64_t i = 0; i < v_bytes; i += kLine) __builtin_prefetch(v + i, 0, kIntoL2);
      k += k_stride;
      v += v_stride;
      --rows;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  static constexpr int kIntoL2 = 2;
};

// out = out * rescale + V^T P over `steps` keys or pairs of keys; `first`: out = V^T P. The tile is
// summed up by itself before it is added: long sums of fp32 lose less that way.
template <class Math, int kVectors>
HWY_NOINLINE void multiply_values(const float* HWY_RESTRICT v, std::int64_t head_dim_v,
                                  std::int64_t steps, const float* HWY_RESTRICT p, bool first,
                                  const float* HWY_RESTRICT rescale, float* HWY_RESTRICT out,
                                  NextTile& next) {
  const Floats df;
  for (std::int64_t d = 0; d < head_dim_v; d += kRows) {
    next.step();
    Sums<Math, kVectors> sums;
    sums.clear();
    const float* column = v + d * kColumnKeys;
    for (std::int64_t step = 0; step < steps; ++step) {
      sums.add(column + step * kRows, 1, p + step * kVectors * kLanes);
    }
    float* to = out + d * kVectors * kLanes;
    HWY_UNROLL(3)
    for (int n = 0; n < kVectors; ++n) {
      const auto factor = hn::Load(df, rescale + n * kLanes);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        float* at = to + (r * kVectors + n) * kLanes;
        const auto sum =
            first ? sums.at[r][n] : hn::MulAdd(hn::Load(df, at), factor, sums.at[r][n]);
        hn::Store(sum, df, at);
      }
    }
  }
}

}  // namespace
}  // namespace batten::impl::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
