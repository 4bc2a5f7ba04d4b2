// The library's own words: problem, shape and call, after validation.
#pragma once

#include <batten/types.hpp>
#include <cstdint>

#include "core/device.hpp"

namespace batten::impl {

// What a layer fixes. Every member is final: defaults have been resolved.
struct Problem {
  DType dtype = DType::none;
  DType out_dtype = DType::none;  // dtype, or f32
  std::int32_t num_heads = 0;     // Hq
  std::int32_t num_kv_heads = 0;  // Hkv, divides Hq
  std::int32_t head_dim = 0;      // D
  std::int32_t head_dim_v = 0;    // Dv
  Mask mask = Mask::none;
  bool batch_invariant = false;

  friend bool operator==(const Problem&, const Problem&) = default;
};

// Element strides of a [B, S, H, D] tensor whose D is contiguous. Packed tensors have batch == 0.
struct Layout {
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;

  friend bool operator==(const Layout&, const Layout&) = default;
};

// Where an int32 array of lengths or offsets lives, if it is given at all. On the CPU always
// `host`.
enum class Source : std::int8_t { none, host, device };

// What a call adds to the problem, without its pointers: all that a plan may bake in.
struct Shape {
  std::int64_t batch = 0;      // B
  std::int64_t max_q = 0;      // BSHD: Sq; packed: upper bound of a sample's queries
  std::int64_t max_kv = 0;     // BSHD: Skv; packed: upper bound of a sample's keys
  std::int64_t tokens_q = 0;   // packed: rows of the query buffer; BSHD: B * Sq
  std::int64_t tokens_kv = 0;  // packed: rows of the key buffer; BSHD: B * Skv
  bool packed = false;
  bool lse = false;
  bool padding_is_finite = false;
  bool scale_is_positive = true;  // vendor kernels fold the scale into a maximum, and need it
  Source q_lengths = Source::none;
  Source kv_lengths = Source::none;
  Source offsets_q = Source::none;   // packed only
  Source offsets_kv = Source::none;  // packed only
  Layout q, k, v, out, lse_layout;

  friend bool operator==(const Shape&, const Shape&) = default;
};

// Stream (core/device.hpp) is null on the CPU.

// The pointers and values of one call. Arrays live where the shape's Source says.
struct Call {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const std::int32_t* q_lengths = nullptr;   // [B]
  const std::int32_t* kv_lengths = nullptr;  // [B]
  const std::int32_t* offsets_q = nullptr;   // [B + 1]
  const std::int32_t* offsets_kv = nullptr;  // [B + 1]
  double scale = 0;
  Stream stream = nullptr;
  bool capturing = false;  // whether the stream is being captured into a CUDA graph
};

// One sample's rows in host-readable calls.
struct Sample {
  std::int64_t q_offset = 0;  // elements from q's base to the sample's first row; out likewise
  std::int64_t out_offset = 0;
  std::int64_t lse_offset = 0;
  std::int64_t k_offset = 0;
  std::int64_t v_offset = 0;
  std::int64_t q_length = 0;  // rows that attend
  std::int64_t q_rows = 0;    // rows of the output that are the sample's: BSHD Sq, packed q_length
  std::int64_t kv_length = 0;
};

// Resolves sample `b` of a call whose lengths and offsets the host may read; lengths are clamped to
// the buffer, so that any array gives legal rows.
Sample sample_of(const Shape& shape, const Call& call, std::int64_t b);

// Largest key index + 1 that query `i` of a sample sees: [0, visible_keys) of kv_length keys.
constexpr std::int64_t visible_keys(Mask mask, std::int64_t i, std::int64_t q_length,
                                    std::int64_t kv_length) noexcept {
  std::int64_t end = kv_length;
  if (mask == Mask::causal) end = i + 1 + kv_length - q_length;
  if (mask == Mask::causal_top_left) end = i + 1;
  return end < 0 ? 0 : (end > kv_length ? kv_length : end);
}

}  // namespace batten::impl
