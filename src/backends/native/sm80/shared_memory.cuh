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

// A row's chunks are spread over so many banks by its number.
template <class P>
inline constexpr int kBanks = P::kRowBytes % 128 == 0  ? 8
                              : P::kRowBytes % 64 == 0 ? 4
                                                       : 2;

// Where a chunk of 16 bytes lies in a tile of rows. Eight rows' chunks of a column lie in different
// banks, and so do eight chunks of a row.
//
// `exchanged`: of four 8x8 blocks (16 rows, 32 bytes) the second and the third change places. So
// queries and values are stored: then one address leads to the fragments of queries, of keys and,
// transposed, of values, and the registers that hold it serve all three.
template <class P>
__device__ __forceinline__ int offset_of(int row, int chunk, bool exchanged = false) {
  constexpr int kMask = kBanks<P> - 1;
  static_assert(P::kChunks % kBanks<P> == 0);
  const int r = exchanged ? (row & ~8) | (chunk & 1) << 3 : row;
  const int c = exchanged ? (chunk & ~1) | (row >> 3 & 1) : chunk;
  const int bank = (r * kBanks<P> / 8 & kMask) ^ (r >> 3 & 1);
  return r * P::kRowBytes + ((c ^ bank) << 4);
}

// From where a chunk lies to where the same chunk of a row further on does, if the numbers of the
// two rows have no bit in common; or another chunk of the row, likewise. The compiler knows both
// numbers: the one is an exclusive or, the other is part of an instruction.
struct Distance {
  int flip = 0;
  int bytes = 0;

  __device__ __forceinline__ std::uint32_t from(std::uint32_t address) const {
    return (address ^ flip) + bytes;
  }
  friend constexpr Distance operator+(const Distance& a, const Distance& b) {
    return {a.flip ^ b.flip, a.bytes + b.bytes};
  }
};
template <class P>
constexpr Distance rows_further(int rows, bool exchanged = false) {
  const int r = exchanged ? rows & ~8 : rows;
  const int flip = (r * kBanks<P> / 8 & (kBanks<P> - 1)) ^ (rows >> 3 & 1);
  return {flip << 4, r * P::kRowBytes};
}
template <class P>
constexpr Distance chunks_further(int chunks) {
  const int flip = chunks & (kBanks<P> - 1);
  return {flip << 4, (chunks - flip) * 16};
}

// Where a tile's queries, keys and values begin. Rows of a few heads may share a tile, each head's
// in a box of the tile's rows.
struct Source {
  const std::uint8_t* begin[kOperands] = {};
  std::int32_t rows = 0;   // queries of each head, from the first on
  std::int32_t heads = 0;  // that the tile has
  std::int32_t box_log2 = 0;
};

// What is to be computed; no blocks: nothing more.
struct Task {
  TileRecord tile;
  Source source;
};

// Between the two warps that share rows: weights as the products take them, and numbers of rows.
template <class P, bool needed>
struct PairMemory {};
template <class P>
struct PairMemory<P, true> {
  uint4 weights[P::kWarps][P::kWarpKeySteps][P::kRowTiles][32];
  float shown[2][P::kSides][P::kTileRows];
};

template <class P>
struct SharedMemory {
  std::uint8_t q[P::kQueryBytes];  // each warp's own rows
  std::uint8_t k[P::kBlockBytes];
  std::uint8_t v[P::kBlockBytes];

  // The tile that is computed, and the one whose queries and first keys are copied while its last
  // block is.
  Task current, next;
  [[no_unique_address]] PairMemory<P, (P::kSides > 1)> pair;
  std::uint8_t again[P::kThreads];   // the tile is computed a second time
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
