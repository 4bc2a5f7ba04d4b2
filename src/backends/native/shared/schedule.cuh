// Which tiles a CTA computes, in which order, and what a tile is. Every role of a CTA walks through
// the same schedule by itself.
#pragma once

#include "backends/native/shared/record.cuh"

namespace batten::impl::native {

// A tile's place in the call.
struct Tile {
  int sample = 0;  // of the call
  int head = 0;    // of the queries
  int row = 0;     // the first, of the sample
};

// What there is to compute in it.
struct Extent {
  int queries = 0;    // of the sample
  int keys = 0;       // likewise
  int first_row = 0;  // where the sample's queries begin in their tensor
  int first_key = 0;  // likewise
  int blocks = 0;     // of keys that some row of the tile sees; they are the first ones
};

__device__ __forceinline__ Place place_of(const Arguments& a, const Tile& tile, const Extent& e) {
  return {tile.head, tile.row + e.first_row, a.packed != 0 ? e.first_row + e.queries : tile.sample};
}

__device__ __forceinline__ bool given(const Array& array) {
  return array.device != nullptr || array.position >= 0;
}

__device__ __forceinline__ int number_of(const Arguments& a, const Array& array, int index) {
  return array.device != nullptr ? __ldg(array.device + index) : a.numbers[array.position + index];
}

// Arrays on the device may hold anything: what comes out lies within the tensor.
__device__ __forceinline__ int length_of(const Arguments& a, const Array& lengths, int local_sample,
                                         int full) {
  if (!given(lengths)) return full;
  return min(max(number_of(a, lengths, local_sample), 0), full);
}

__device__ __forceinline__ void packed_rows(const Arguments& a, const Array& offsets,
                                            int local_sample, int rows, int most, int& first,
                                            int& count) {
  first = min(max(number_of(a, offsets, local_sample), 0), rows);
  const int end = min(max(number_of(a, offsets, local_sample + 1), first), rows);
  count = min(end - first, most);
}

// Keys that a row sees are those before this one; 0 for rows past the sample's queries.
template <class P>
__device__ __forceinline__ int visible_keys(const Arguments& a, const Extent& e, int row) {
  if (row >= e.queries) return 0;
  if (!P::kCausal) return e.keys;
  const int shift = a.bottom_right != 0 ? e.keys - e.queries : 0;
  return min(max(row + 1 + shift, 0), e.keys);
}

// Of all tiles of a launch's sample: all but their blocks.
__device__ __forceinline__ Extent sample_extent(const Arguments& a, int local) {
  Extent e;
  e.queries = a.max_q;
  e.keys = a.max_kv;
  if (a.packed != 0) {
    packed_rows(a, a.offsets_q, local, a.rows_q, a.max_q, e.first_row, e.queries);
    packed_rows(a, a.offsets_kv, local, a.rows_kv, a.max_kv, e.first_key, e.keys);
  }
  e.queries = length_of(a, a.q_lengths, local, e.queries);
  e.keys = length_of(a, a.kv_lengths, local, e.keys);
  return e;
}

// Key blocks of the tile that begins with `row`.
template <class P>
__device__ __forceinline__ int blocks_of(const Arguments& a, const Extent& e, int row) {
  // The last row of the tile sees the most.
  const int last = min(row + P::kTileRows, e.queries) - 1;
  const int seen = last < row ? 0 : visible_keys<P>(a, e, last);
  return (seen + P::kBlockKeys - 1) / P::kBlockKeys;
}

template <class P>
__device__ __forceinline__ Extent extent_of(const Arguments& a, const Tile& tile) {
  Extent e = sample_extent(a, tile.sample - a.first_sample);
  e.blocks = blocks_of<P>(a, e, tile.row);
  return e;
}

template <class T>
__device__ __forceinline__ T* row_of_output(const Arguments& a, const Place& place, int row) {
  return static_cast<T*>(a.output) + place.sample(a) * a.out_layout.batch + row * a.out_layout.row +
         place.head * a.out_layout.head;
}

__device__ __forceinline__ float* lse_of_row(const Arguments& a, const Place& place, int row) {
  return a.lse + place.sample(a) * a.lse_layout.batch + row * a.lse_layout.row +
         place.head * a.lse_layout.head;
}

// What a CTA computes at a time: a tile, or a part of one. A part's keys are all that it knows of.
struct Piece {
  Tile tile;
  Extent extent;
  int part = -1;  // its number; -1: the tile is whole
};

// Tiles are dealt out in rounds. Without a mask a head's tiles follow each other, so that the CTAs
// of a round share keys in the L2 cache. Under a causal mask tiles differ in length: within a
// section (heads whose keys fit into the cache) the longest come first, and every other round is
// dealt in the opposite order, which evens the sums out.
template <class P>
class Schedule {
 public:
  // With `redo` only the tiles whose bit is set.
  __device__ __forceinline__ explicit Schedule(const std::uint32_t* redo = nullptr) : redo_(redo) {}

  // Which of the CTA's pieces next() found.
  __device__ __forceinline__ int round() const { return round_ - 1; }

  __device__ __forceinline__ bool next(const Arguments& a, Piece& piece) {
    for (;;) {
      const int round = round_++;
      if (P::kDivides && a.division.divides()) {
        if (!next_part(a.division, piece)) return false;
      } else {
        const int index = index_in(a, round);
        if (index >= a.tiles) return false;  // only the last round has holes
        piece.tile = tile_at(a, index);
      }
      if (redo_ != nullptr) {
        const int bit = round >> a.redo_shift;
        if ((redo_[bit / 32] >> bit % 32 & 1) == 0) continue;
      }
      if (piece.part < 0) piece.extent = extent_of<P>(a, piece.tile);
      return true;
    }
  }

 private:
  static __device__ __forceinline__ int index_in(const Arguments& a, int round) {
    const int ctas = static_cast<int>(gridDim.x);
    const int cta = static_cast<int>(blockIdx.x);
    const bool reversed = P::kCausal && round % 2 != 0;
    return round * ctas + (reversed ? ctas - 1 - cta : cta);
  }

  // The next part of this CTA's share, or the first of its next share.
  __device__ __forceinline__ bool next_part(const Division& d, Piece& piece) {
    if (unit_ == end_) {
      share_ += share_ < 0 ? 1 + static_cast<int>(blockIdx.x) : static_cast<int>(gridDim.x);
      if (share_ >= d.all_shares()) return false;
      unit_ = d.begin(share_);
      end_ = d.begin(share_ + 1);
      tile_ = unit_ / d.blocks;
    }
    const int of_tile = tile_ * d.blocks;
    const int first = unit_ - of_tile;
    const int end = min(end_ - of_tile, d.blocks);
    const TileRows rows = d.rows_of(tile_);
    piece.tile = {rows.sample, rows.head, rows.row};
    piece.extent.first_key = first * P::kBlockKeys;
    piece.extent.keys = min(d.keys, end * P::kBlockKeys) - piece.extent.first_key;
    piece.extent.blocks = end - first;
    piece.part = d.part_of(tile_, share_);
    unit_ = of_tile + end;
    tile_ += end == d.blocks ? 1 : 0;
    return true;
  }

  static __device__ __forceinline__ Tile tile_at(const Arguments& a, int index) {
    int head;  // counted through all samples
    int row_tile;
    if constexpr (P::kCausal) {
      const int section = a.per_section.quotient(index);
      const int place = index - section * a.row_tiles * a.section_heads;
      const Divisor& heads = section == a.last_section ? a.heads_of_last : a.heads_of_section;
      const int level = heads.quotient(place);
      head = section * a.section_heads + place - level * static_cast<int>(heads.divisor);
      row_tile = a.row_tiles - 1 - level;
    } else {
      head = a.per_head.quotient(index);
      row_tile = index - head * a.row_tiles;
    }
    const int local = a.heads.quotient(head);
    return {a.first_sample + local, head - local * a.num_heads, row_tile * P::kTileRows};
  }

  const std::uint32_t* redo_;
  int round_ = 0;
  // Divided tiles: the share, what is left of it, and the tile that is next.
  int share_ = -1;
  int unit_ = 0;
  int end_ = 0;
  int tile_ = 0;
};

}  // namespace batten::impl::native
