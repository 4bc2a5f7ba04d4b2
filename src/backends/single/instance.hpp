// The compiled FlashInfer kernels, without FlashInfer's types: its sm80 and sm90 headers define the
// same names differently, so that each kernel is a translation unit of its own behind this header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device.hpp"

namespace batten::impl::single {

// One launch: `rows` queries of one sample on its first `keys` keys, both at least 1. Strides in
// elements; the kernels want addresses and strides in multiples of 16 bytes.
struct Launch {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;  // optional [rows, num_heads] contiguous; base 2, as FlashInfer writes it
  std::int64_t q_row = 0, q_head = 0;
  std::int64_t k_row = 0, k_head = 0;
  std::int64_t v_row = 0, v_head = 0;
  std::int64_t out_row = 0, out_head = 0;
  std::int32_t rows = 0;
  std::int32_t keys = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  float scale = 0;
  void* scratch = nullptr;  // sm80: kSplitScratch bytes, or null: never split the keys
};

// What FlashInfer's own Python interface gives its sm80 kernel to split the keys of few queries in.
// The kernel splits until two blocks occupy every multiprocessor, which bounds what it writes to
// 2 * multiprocessors * 128 rows * (2 * head_dim + 4) bytes: 9 MiB on an H200 with head_dim 128.
inline constexpr std::size_t kSplitScratch = std::size_t{32} << 20;

struct Instance {
  const char* kernel = nullptr;  // for the receipt; null: not compiled
  const char* tile = nullptr;
  void (*prepare)() = nullptr;  // once per device, before its first launch; may be null
  void (*launch)(const Launch& launch, Stream stream) = nullptr;
};

// Defined in sm90/ and sm80/, one file each. "sm90" is FlashAttention-3's design (TMA, WGMMA),
// "sm80" FlashAttention-2's (cp.async, mma.sync). Causal is bottom-right and needs rows <= keys.
template <DType dtype, int head_dim, bool causal>
Instance sm90_instance();
template <DType dtype, int head_dim, bool causal>
Instance sm80_instance();

}  // namespace batten::impl::single
