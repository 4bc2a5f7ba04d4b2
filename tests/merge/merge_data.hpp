// Tensors for the merge tests: random partial results in any type and layout.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/half.hpp"
#include "merge/merge.hpp"

namespace batten::impl::merge_test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Dims {
  std::int64_t batch = 1, rows = 1, heads = 1, head_dim = 1;
  std::int64_t count() const { return batch * rows * heads; }
};

enum class Order { bshd, bhsd, padded };

inline Layout layout_of(const Dims& dims, Order order, std::int64_t inner) {
  switch (order) {
    case Order::bshd:
      return {dims.rows * dims.heads * inner, dims.heads * inner, inner};
    case Order::bhsd:
      return {dims.rows * dims.heads * inner, inner, dims.rows * inner};
    case Order::padded:
      break;
  }
  const std::int64_t head = inner + 5;
  return {(dims.rows * dims.heads + 3) * head, dims.heads * head + 1, head};
}

inline std::size_t extent_of(const Dims& dims, const Layout& layout, std::int64_t inner) {
  return static_cast<std::size_t>((dims.batch - 1) * layout.batch + (dims.rows - 1) * layout.row +
                                  (dims.heads - 1) * layout.head + inner);
}

// A tensor of `dtype` as raw memory.
struct Buffer {
  DType dtype = DType::f32;
  std::vector<std::uint8_t> bytes;

  Buffer(DType type, std::size_t elements) : dtype(type), bytes(elements * size_of(type)) {}

  float get(std::int64_t index) const {
    const std::uint8_t* at = bytes.data() + static_cast<std::size_t>(index) * size_of(dtype);
    if (dtype == DType::f32) {
      float value;
      __builtin_memcpy(&value, at, sizeof(value));
      return value;
    }
    std::uint16_t bits;
    __builtin_memcpy(&bits, at, sizeof(bits));
    return dtype == DType::f16 ? half_to_float(bits) : bfloat16_to_float(bits);
  }
  void set(std::int64_t index, float value) {
    std::uint8_t* at = bytes.data() + static_cast<std::size_t>(index) * size_of(dtype);
    if (dtype == DType::f32) {
      __builtin_memcpy(at, &value, sizeof(value));
      return;
    }
    const std::uint16_t bits =
        dtype == DType::f16 ? float_to_half(value) : float_to_bfloat16(value);
    __builtin_memcpy(at, &bits, sizeof(bits));
  }
};

// One partial result, in its own layouts.
struct Partial {
  Dims dims;
  Layout out_layout, lse_layout;
  Buffer out, lse;

  Partial(const Dims& d, DType dtype, Order order)
      : dims(d),
        out_layout(layout_of(d, order, d.head_dim)),
        lse_layout(layout_of(d, order, 1)),
        out(dtype, extent_of(d, out_layout, d.head_dim)),
        lse(DType::f32, extent_of(d, lse_layout, 1)) {}

  std::int64_t row(const Layout& layout, std::int64_t n) const {
    const std::int64_t h = n % dims.heads;
    const std::int64_t i = n / dims.heads % dims.rows;
    return n / dims.heads / dims.rows * layout.batch + i * layout.row + h * layout.head;
  }
  float get(std::int64_t n, std::int64_t d) const { return out.get(row(out_layout, n) + d); }
  float get_lse(std::int64_t n) const { return lse.get(row(lse_layout, n)); }
  void set(std::int64_t n, std::int64_t d, float value) { out.set(row(out_layout, n) + d, value); }
  void set_lse(std::int64_t n, float value) { lse.set(row(lse_layout, n), value); }

  // Outputs near 1, log-sum-exps that differ by some; every fifth row is empty.
  void fill(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t n = 0; n < dims.count(); ++n) {
      const bool empty = (n + seed) % 5 == 0;
      set_lse(n, empty ? -kInfinity : 8 * normal(random));
      for (std::int64_t d = 0; d < dims.head_dim; ++d) set(n, d, empty ? 0 : normal(random));
    }
  }
};

inline MergeCall call_of(Partial& first, const Partial& second) {
  MergeCall call;
  call.out = first.out.bytes.data();
  call.lse = reinterpret_cast<float*>(first.lse.bytes.data());
  call.out2 = second.out.bytes.data();
  call.lse2 = reinterpret_cast<const float*>(second.lse.bytes.data());
  call.out_dtype = first.out.dtype;
  call.out2_dtype = second.out.dtype;
  call.batch = first.dims.batch;
  call.rows = first.dims.rows;
  call.heads = first.dims.heads;
  call.head_dim = first.dims.head_dim;
  call.out_layout = first.out_layout;
  call.lse_layout = first.lse_layout;
  call.out2_layout = second.out_layout;
  call.lse2_layout = second.lse_layout;
  return call;
}

inline constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
inline constexpr Order kOrders[] = {Order::bshd, Order::bhsd, Order::padded};

}  // namespace batten::impl::merge_test
