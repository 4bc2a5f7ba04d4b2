// What the scheduler gives to a SIMD kernel: a block of query rows of one key/value head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/backend.hpp"
#include "problem/problem.hpp"

namespace batten::impl::cpu {

// Keys whose scores exist at once. Their K and V rows (at D = 128, fp32: 64 KiB each) stay in L2,
// the scores of a panel of rows in L1.
inline constexpr std::int64_t kKeyTile = 128;

// Query rows of a block: so many share a K/V tile, which comes from L3 or further away, row by row
// out of different pages. The more the better, but scratch grows with them.
inline constexpr std::int64_t kMaxBlockRows = 768;

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kHeadDimStep = 8;

// The query heads that share a kv head are stacked: row r is query r / group of head r % group, so
// that neighbours see about the same keys, and few queries still fill the vectors.
struct Block {
  DType dtype = DType::none;
  DType out_dtype = DType::none;
  Mask mask = Mask::none;
  int head_dim = 0;
  int head_dim_v = 0;
  std::int64_t group = 1;  // query heads per kv head
  double scale = 1;

  // At the sample's first token and the kv head (q, out and lse: at the first head of its group).
  // Strides are in elements.
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;  // or null
  std::int64_t q_row = 0, q_head = 0;
  std::int64_t k_row = 0, v_row = 0;
  std::int64_t out_row = 0, out_head = 0;
  std::int64_t lse_row = 0, lse_head = 0;

  std::int64_t first_row = 0;  // stacked rows that the block writes ...
  std::int64_t num_rows = 0;   // ... at most kMaxBlockRows
  std::int64_t q_length = 0;   // queries at or past it attend to nothing
  std::int64_t kv_length = 0;
};

// One SIMD target's code.
struct Kernel {
  const char* target = nullptr;  // "AVX3"
  int lanes = 0;                 // fp32 values of a vector; a block has a multiple of it of rows
  int panel_rows = 0;            // query rows whose scores are computed together
  void (*attend)(const Block& block, void* scratch) = nullptr;
  // The same for bf16 by the CPU's dot product of bf16 pairs; null: the target has none.
  void (*attend_bf16_dot)(const Block& block, void* scratch) = nullptr;
};

// Whether this CPU multiplies pairs of bf16, and whether that is taken to be faster than fp32. On
// Intel's Emerald Rapids it is half as fast (measured: docs/performance/cpu.md), and no other Intel
// core is trusted to be better; AMD's Zen 4 and later are said to do twice as many multiply-adds
// so.
enum class DotOfPairs { missing, slow, fast };
DotOfPairs bf16_dot();

// Whether this CPU has any of the targets.
Availability availability();

// The best one for this machine (or what Highway's SetSupportedTargetsForTest leaves).
const Kernel& best_kernel();

// Bytes of scratch for a block of up to `rows` rows.
std::size_t scratch_size(int head_dim, int head_dim_v, std::int64_t rows);

}  // namespace batten::impl::cpu
