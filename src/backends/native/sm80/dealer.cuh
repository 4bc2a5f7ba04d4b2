// Deals a CTA its tiles, one ahead of those who compute them.
#pragma once

#include <new>

#include "backends/native/shared/deal.cuh"
#include "backends/native/sm80/shared_memory.cuh"

namespace batten::impl::native::sm80 {

template <class P>
class Dealer {
 public:
  __device__ __forceinline__ Dealer(SharedMemory<P>& shared, const Arguments& a)
      : shared_(shared), a_(a) {}

  // Before all else. For one thread.
  __device__ __forceinline__ void begin() const {
    new (&shared_.full) Schedule<Tiling<P, false>>();
    new (&shared_.causal) Schedule<Tiling<P, true>>();
    shared_.redone = 0;
    shared_.has_empty_tiles = takes() ? 1 : 0;  // the list is without them
  }

  // What was next becomes the current task, and is followed by another one. For one whole warp.
  __device__ __forceinline__ void advance(bool is_first) const {
    const bool is_first_lane = threadIdx.x % 32 == 0;
    if (is_first_lane && !is_first) shared_.current = shared_.next;
    if (takes()) {
      take(is_first);
    } else if (is_first_lane) {
      if (a_.causal != 0) {
        next_of(shared_.causal);
      } else {
        next_of(shared_.full);
      }
    }
  }

 private:
  __device__ __forceinline__ bool takes() const { return a_.deal.samples != nullptr; }

  // Where samples differ in length, a CTA has one tile of the list, that with its number.
  __device__ __forceinline__ void take(bool is_first) const {
    Deck deck;
    const auto tile = static_cast<int>(blockIdx.x);
    const int at = is_first ? deck.find(a_.deal, tile) : -1;
    if (threadIdx.x % 32 != 0) return;
    Piece piece;
    if (at >= 0) {
      piece = a_.causal != 0 ? piece_of<Tiling<P, true>>(a_, at, tile)
                             : piece_of<Tiling<P, false>>(a_, at, tile);
    }
    describe(piece);
  }

  template <class T>
  __device__ __forceinline__ void next_of(Schedule<T>& schedule) const {
    Piece piece;
    while (schedule.next(a_, piece)) {
      if (piece.extent.blocks > 0) return describe(piece);
      shared_.has_empty_tiles = 1;
    }
    shared_.next.tile.blocks = 0;
    shared_.next.tile.keys = 0;
  }

  __device__ __forceinline__ void describe(const Piece& piece) const {
    const Extent& extent = piece.extent;
    const Place place = place_of(a_, piece.tile, extent);
    const int shift = a_.bottom_right != 0 ? extent.keys - extent.queries : 0;
    TileRecord& record = shared_.next.tile;
    if (piece.part < 0) {
      record = {place, extent.blocks, extent.first_row + extent.queries, extent.keys,
                shift - extent.first_row};
    } else {
      record = {{.sample_or_end = piece.part}, extent.blocks, kTileRows, extent.keys};
    }
    shared_.next.source = source_of(piece, place);
  }

  __device__ __forceinline__ Source source_of(const Piece& piece, const Place& place) const {
    const int sample = place.sample(a_);
    const int key_head = a_.group.quotient(place.head);
    const auto begin = [&](const Tensor& tensor, int row, int head) {
      const Layout& layout = tensor.layout;
      const std::int64_t element = sample * layout.batch + row * layout.row + head * layout.head;
      return static_cast<const std::uint8_t*>(tensor.data) + element * 2;
    };
    Source source{begin(a_.queries, place.row, place.head),
                  begin(a_.keys, piece.extent.first_key, key_head),
                  begin(a_.values, piece.extent.first_key, key_head),
                  piece.extent.queries - piece.tile.row,
                  1,
                  kNoBoxes};
    if (piece.part >= 0) {
      source.rows = a_.division.rows - piece.tile.row;
      const int behind = (key_head + 1) * a_.group.value() - place.head;
      source.heads = min(a_.division.heads_of_tile, behind);
      source.box_log2 = a_.division.box_log2;
    }
    return source;
  }

  static constexpr int kNoBoxes = 31;

  SharedMemory<P>& shared_;
  const Arguments& a_;
};

}  // namespace batten::impl::native::sm80
