// Tiles that are taken one by one: what the n-th is.
#pragma once

#include "backends/native/limits.hpp"
#include "backends/native/shared/schedule.cuh"

namespace batten::impl::native {

// What the dealer of a CTA hands out.
struct Dealt {
  Piece piece;    // of no blocks: there are no more
  int round = 0;  // which of the CTA's it is
};

// Walks through the samples of a Deal as a CTA's tiles come, each with a higher number than the one
// before. For one whole warp.
class Deck {
 public:
  // The place in the list of the sample that has the tile; -1: there is no such tile.
  __device__ __forceinline__ int find(const Deal& deal, int tile) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    unsigned later;
    for (;;) {
      later = __ballot_sync(~0u, first_tile_ > tile);
      if (later != 0) break;
      base_ += 31;  // the last one seen may go on
      const int at = base_ + lane;
      first_tile_ = at <= deal.count ? __ldcg(&deal.samples[at].first_tile) : kNever;
    }
    // The one before the first that begins later.
    const int at = base_ + __ffs(static_cast<int>(later)) - 2;
    return at < deal.count ? at : -1;
  }

 private:
  static constexpr int kNever = 0x7fffffff;

  // Entries of the list from base_ on, one a lane; none are loaded at first.
  int base_ = -31;
  int first_tile_ = -1;
};

// The tile with this number, of the sample in this place of the list. Without a mask a head's tiles
// follow each other; under one the longest of a few heads come first.
template <class P>
__device__ __forceinline__ Piece piece_of(const Arguments& a, int at, int tile) {
  const int4* const entry = reinterpret_cast<const int4*>(&a.deal.samples[at]);
  const int4 head = __ldcg(entry);
  const int4 tail = __ldcg(entry + 1);
  const int row_tiles = tail.z;
  int n = tile - head.x;
  Piece piece;
  piece.tile.sample = head.y;
  piece.extent = {head.z, head.w, tail.x, tail.y, 0};
  int row_tile;
  if constexpr (P::kCausal) {
    const int section_heads = tail.w;
    const int section = n / (row_tiles * section_heads);
    n -= section * row_tiles * section_heads;
    const int heads = min(section_heads, a.num_heads - section * section_heads);
    const int level = n / heads;
    piece.tile.head = section * section_heads + n - level * heads;
    row_tile = row_tiles - 1 - level;
  } else {
    piece.tile.head = n / row_tiles;
    row_tile = n - piece.tile.head * row_tiles;
  }
  piece.tile.row = row_tile * P::kTileRows;
  piece.extent.blocks = blocks_of<P>(a, piece.extent, piece.tile.row);
  return piece;
}

}  // namespace batten::impl::native
