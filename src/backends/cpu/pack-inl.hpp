// Moving rows between memory and the kernel's panels: conversion to fp32, transposition.
// Included once per SIMD target.
#if defined(BATTEN_CPU_PACK_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef BATTEN_CPU_PACK_INL_HPP
#undef BATTEN_CPU_PACK_INL_HPP
#else
#define BATTEN_CPU_PACK_INL_HPP
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backends/cpu/block.hpp"
#include "backends/cpu/convert-inl.hpp"
#include "backends/cpu/scratch.hpp"

HWY_BEFORE_NAMESPACE();
namespace batten::impl::cpu::HWY_NAMESPACE {
namespace {

// Rows of a tensor at a sample and head. A stacked row is query r / group of head r % group.
template <class T>
struct Rows {
  T* first;
  std::int64_t row_stride;
  std::int64_t head_stride = 0;

  HWY_INLINE T* at(std::int64_t row) const { return first + row * row_stride; }
  HWY_INLINE T* stacked(std::int64_t r, std::int64_t group) const {
    return first + r / group * row_stride + r % group * head_stride;
  }
};

// The stacked rows of one vector, a row to a lane.
template <class T>
struct LaneRows {
  T* at[kLanes];
};

// Asks for rows that will soon be read or written: they lie in as many pages, and waiting for each
// in turn takes longer than moving them.
template <class T>
HWY_INLINE void prefetch_rows(const LaneRows<T>& rows, std::int64_t dim) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t bytes = dim * static_cast<std::int64_t>(sizeof(T));
  for (T* row : rows.at) {
    const auto* first = reinterpret_cast<const std::byte*>(row);
    for (std::int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(first + i);
  }
}

// Transpositions move 4x4 values within 128-bit blocks.
using Quad = hn::FixedTag<float, 4>;
constexpr std::int64_t kQuad = 4;

// A vector whose block b has four values from `offset` on of row rows[4 * b].
template <class D, class In>
HWY_INLINE hn::Vec<D> load_blocks(D d, In* const* rows, std::int64_t offset) {
  if constexpr (hn::MaxLanes(D()) == kQuad) {
    return load_floats(d, rows[0] + offset);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, rows + hn::MaxLanes(half), offset),
                       load_blocks(half, rows, offset));
  }
}

template <class D, class Out>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, Out* const* rows, std::int64_t offset) {
  if constexpr (hn::MaxLanes(D()) == kQuad) {
    store_floats(d, v, rows[0] + offset);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), rows, offset);
    store_blocks(half, hn::UpperHalf(half, v), rows + hn::MaxLanes(half), offset);
  }
}

// Transposes the 4x4 values in each 128-bit block of four vectors.
HWY_INLINE void transpose_blocks(Vector& a, Vector& b, Vector& c, Vector& e) {
  const Floats df;
  const hn::RepartitionToWide<hn::RebindToUnsigned<Floats>> du64;
  const auto ab_low = hn::BitCast(du64, hn::InterleaveLower(df, a, b));
  const auto ab_high = hn::BitCast(du64, hn::InterleaveUpper(df, a, b));
  const auto ce_low = hn::BitCast(du64, hn::InterleaveLower(df, c, e));
  const auto ce_high = hn::BitCast(du64, hn::InterleaveUpper(df, c, e));
  a = hn::BitCast(df, hn::InterleaveLower(du64, ab_low, ce_low));
  b = hn::BitCast(df, hn::InterleaveUpper(du64, ab_low, ce_low));
  c = hn::BitCast(df, hn::InterleaveLower(du64, ab_high, ce_high));
  e = hn::BitCast(df, hn::InterleaveUpper(du64, ab_high, ce_high));
}

// `factor` is 1, -1 or 0; for pairs not 0.
template <class In>
HWY_INLINE Vector scale_queries(Vector v, float factor) {
  const Floats df;
  if constexpr (std::is_same_v<std::remove_const_t<In>, Pair>) {
    const auto signs = hn::Set(hn::RebindToUnsigned<Floats>(), factor < 0 ? 0x80008000u : 0u);
    return hn::Xor(v, hn::BitCast(df, signs));
  } else {
    return hn::Mul(v, hn::Set(df, factor));  // 0 times NaN is NaN
  }
}

// The queries of a vector's rows, `dim` elements each, times `factor`, transposed:
// panel[d * width + lane].
template <class In>
void pack_queries(const LaneRows<In>& rows, std::int64_t dim, float factor,
                  float* HWY_RESTRICT panel, std::int64_t width) {
  const Floats df;
  for (std::int64_t d = 0; d < dim; d += kQuad) {
    auto a = load_blocks(df, rows.at, d);
    auto b = load_blocks(df, rows.at + 1, d);
    auto c = load_blocks(df, rows.at + 2, d);
    auto e = load_blocks(df, rows.at + 3, d);
    transpose_blocks(a, b, c, e);
    float* out = panel + d * width;
    hn::Store(scale_queries<In>(a, factor), df, out);
    hn::Store(scale_queries<In>(b, factor), df, out + width);
    hn::Store(scale_queries<In>(c, factor), df, out + 2 * width);
    hn::Store(scale_queries<In>(e, factor), df, out + 3 * width);
  }
}

// The inverse for the result, divided by the rows' sums; rows that saw no key become 0.
template <class Out>
void unpack_output(const float* HWY_RESTRICT panel, std::int64_t width, std::int64_t dim,
                   const float* HWY_RESTRICT sum, const LaneRows<Out>& rows) {
  const Floats df;
  const auto sums = hn::Load(df, sum);
  const auto empty = hn::Eq(sums, hn::Zero(df));
  const auto inverse = hn::Div(hn::Set(df, 1.0f), sums);
  const auto load = [&](const float* at) HWY_ATTR {
    return hn::IfThenZeroElse(empty, hn::Mul(hn::Load(df, at), inverse));
  };
  for (std::int64_t d = 0; d < dim; d += kQuad) {
    const float* in = panel + d * width;
    auto a = load(in);
    auto b = load(in + width);
    auto c = load(in + 2 * width);
    auto e = load(in + 3 * width);
    transpose_blocks(a, b, c, e);
    store_blocks(df, a, rows.at, d);
    store_blocks(df, b, rows.at + 1, d);
    store_blocks(df, c, rows.at + 2, d);
    store_blocks(df, e, rows.at + 3, d);
  }
}

// Rows [first, first + count) of `dim` elements one after another as fp32 (pairs as they are), and
// rows of 0 up to a multiple of `multiple`: their scores are computed with the others, and never
// looked at.
template <class In>
void pack_keys(Rows<In> k, std::int64_t dim, std::int64_t first, std::int64_t count,
               std::int64_t multiple, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, kHeadDimStep / 2> d;  // a row of pairs has a multiple of 4 elements
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(d));
  for (std::int64_t key = 0; key < count; ++key) {
    const In* row = k.at(first + key);
    for (std::int64_t i = 0; i < dim; i += kStep) {
      hn::StoreU(load_floats(d, row + i), d, out + key * dim + i);
    }
  }
  for (std::int64_t key = count; key % multiple != 0; ++key) {
    std::fill_n(out + key * dim, dim, 0.0f);
  }
}

// Where value d of a step lies when columns of kColumn values are kept together: a step is a key,
// or a pair of them.
template <std::int64_t kColumn>
HWY_INLINE std::int64_t column_offset(std::int64_t step, std::int64_t d) {
  return (d / kColumn * kColumnKeys + step) * kColumn + d % kColumn;
}

// Values of keys [first, first + count) in columns.
template <std::int64_t kColumn, class In>
void pack_values(Rows<In> v, std::int64_t dim, std::int64_t first, std::int64_t count,
                 float* HWY_RESTRICT out) {
  const hn::CappedTag<float, kColumn> d;
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(d));
  for (std::int64_t key = 0; key < count; ++key) {
    const In* row = v.at(first + key);
    for (std::int64_t i = 0; i < dim; i += kStep) {
      hn::StoreU(load_floats(d, row + i), d, out + column_offset<kColumn>(key, i));
    }
  }
}

// The same with the values of two keys in a pair; the last of an odd number is paired with 0.
template <std::int64_t kColumn>
void pack_value_pairs(Rows<const hwy::bfloat16_t> v, std::int64_t dim, std::int64_t first,
                      std::int64_t count, float* HWY_RESTRICT out) {
  const hn::RebindToUnsigned<Quad> d32;
  const hn::Rebind<std::uint16_t, Quad> d16;
  const auto load = [&](const hwy::bfloat16_t* p) {
    return hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)));
  };
  for (std::int64_t key = 0; key < count; key += 2) {
    const hwy::bfloat16_t* even = v.at(first + key);
    const hwy::bfloat16_t* odd = key + 1 < count ? v.at(first + key + 1) : nullptr;
    for (std::int64_t d = 0; d < dim; d += kQuad) {
      auto pair = load(even + d);
      if (odd != nullptr) pair = hn::Or(pair, hn::ShiftLeft<16>(load(odd + d)));
      hn::StoreU(hn::BitCast(Quad(), pair), Quad(), out + column_offset<kColumn>(key / 2, d));
    }
  }
}

}  // namespace
}  // namespace batten::impl::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
