// The shared memory of a CTA.
#pragma once

#include "backends/native/shared/schedule.cuh"
#include "backends/native/sm80/arguments.hpp"
#include "backends/native/sm80/policy.cuh"

namespace batten::impl::native::sm80 {

// One kernel serves all masks; the schedule is compiled for each kind.
template <class P, bool causal>
struct Tiling : P {
  static constexpr bool kCausal = causal;
  static constexpr bool kDivides = !causal;
};

// Where a chunk of 16 bytes lies in a tile of rows. Eight rows' chunks of a column lie in different
// banks, and so do eight chunks of a row.
//
// `exchanged`: of four 8x8 blocks (16 rows, 32 bytes) the second and the third change places. So
// queries and values are stored: then one address leads to the fragments of queries, of keys and,
// transposed, of values, and the registers that hold it serve all three.
template <class P>
__device__ __forceinline__ int offset_of(int row, int chunk, bool exchanged = false) {
  constexpr int kShift = P::kRowBytes % 128 == 0 ? 0 : P::kRowBytes % 64 == 0 ? 1 : 2;
  constexpr int kBanks = 8 >> kShift;  // that a row's chunks are spread over by its number
  static_assert(P::kChunks % kBanks == 0);
  const int r = exchanged ? (row & ~8) | (chunk & 1) << 3 : row;
  const int c = exchanged ? (chunk & ~1) | (row >> 3 & 1) : chunk;
  const int bank = (r >> kShift & (kBanks - 1)) ^ (r >> 3 & 1);
  return r * P::kRowBytes + ((c ^ bank) << 4);
}

// Where a tile's queries, keys and values begin. Rows of a few heads may share a tile, each head's
// in a box of the tile's rows.
struct Source {
  const std::uint8_t* queries = nullptr;
  const std::uint8_t* keys = nullptr;
  const std::uint8_t* values = nullptr;
  std::int32_t rows = 0;   // queries of each head, from the first on
  std::int32_t heads = 0;  // that the tile has
  std::int32_t box_log2 = 0;
};

// What is to be computed; no blocks: nothing more.
struct Task {
  TileRecord tile;
  Source source;
};

template <class P>
struct SharedMemory {
  std::uint8_t q[P::kQueryBytes];  // each warp's own rows
  std::uint8_t k[P::kBlockBytes];
  std::uint8_t v[P::kBlockBytes];

  // The tile that is computed, and the one whose queries and first keys are copied while its last
  // block is.
  Task current, next;
  std::int32_t unmasked[P::kWarps];  // blocks of the tile that all rows of the warp see

  // Of one thread, which walks through one of the two.
  Schedule<Tiling<P, false>> full;
  Schedule<Tiling<P, true>> causal;
  std::int32_t has_empty_tiles = 0;  // tiles have been found that see no key
  std::uint32_t redone = 0;          // tiles that were computed twice

  // Values that are not finite, taken out of a block that not all rows of a tile see: for each
  // column the first key of the block that has +infinity or NaN, and -infinity or NaN; kBlockKeys
  // if none has.
  std::uint8_t plus[P::kHeadDim];
  std::uint8_t minus[P::kHeadDim];
  static_assert(P::kBlockKeys <= 255);
  std::uint32_t nonfinite = 0;  // a bit for each eight columns that have one
  static_assert(P::kHeadDim <= 8 * 32);
};

}  // namespace batten::impl::native::sm80
