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

  // Describes what comes next; no blocks: there is no more. For one thread.
  __device__ __forceinline__ void next(int slot) const {
    if (a_.deal.samples != nullptr) {
      shared_.tile[slot].blocks = 0;  // the CTA has had its tile
    } else if (a_.causal != 0) {
      next_of(shared_.causal, slot);
    } else {
      next_of(shared_.full, slot);
    }
  }

  // Where samples differ in length, a CTA has one tile of the list, that with its number. For one
  // whole warp.
  __device__ __forceinline__ void take(int slot) const {
    Deck deck;
    const auto tile = static_cast<int>(blockIdx.x);
    const int at = deck.find(a_.deal, tile);
    if (threadIdx.x % 32 != 0) return;
    Piece piece;
    if (at >= 0) {
      piece = a_.causal != 0 ? piece_of<Tiling<P, true>>(a_, at, tile)
                             : piece_of<Tiling<P, false>>(a_, at, tile);
    }
    describe(piece, slot);
  }

 private:
  template <class T>
  __device__ __forceinline__ void next_of(Schedule<T>& schedule, int slot) const {
    Piece piece;
    while (schedule.next(a_, piece)) {
      if (piece.extent.blocks > 0) return describe(piece, slot);
      shared_.has_empty_tiles = 1;
    }
    shared_.tile[slot].blocks = 0;
  }

  __device__ __forceinline__ void describe(const Piece& piece, int slot) const {
    const Extent& extent = piece.extent;
    const Place place = place_of(a_, piece.tile, extent);
    const int shift = a_.bottom_right != 0 ? extent.keys - extent.queries : 0;
    TileRecord& record = shared_.tile[slot];
    if (piece.part < 0) {
      record = {place, extent.blocks, extent.first_row + extent.queries, extent.keys,
                shift - extent.first_row};
    } else {
      record = {{.sample_or_end = piece.part}, extent.blocks, kTileRows, extent.keys};
    }
    shared_.source[slot] = source_of(piece, place);
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
                  piece.extent.queries - piece.tile.row, 1};
    if (piece.part >= 0) {
      source.rows = a_.division.rows - piece.tile.row;
      const int behind = (key_head + 1) * a_.group.value() - place.head;
      source.heads = min(a_.division.heads_of_tile, behind);
    }
    return source;
  }

  SharedMemory<P>& shared_;
  const Arguments& a_;
};

// Deals the first tile. For one whole warp.
template <class P>
__device__ __noinline__ void begin_dealing(SharedMemory<P>& shared, const Arguments& a) {
  const Dealer<P> dealer(shared, a);
  const bool is_first = threadIdx.x % 32 == 0;
  const bool takes = a.deal.samples != nullptr;
  if (is_first) {
    new (&shared.full) Schedule<Tiling<P, false>>();
    new (&shared.causal) Schedule<Tiling<P, true>>();
    shared.has_empty_tiles = takes ? 1 : 0;  // the list is without them
  }
  __syncwarp();
  if (takes) {
    dealer.take(0);
  } else if (is_first) {
    dealer.next(0);
  }
}

// Deals one more. For one thread. A call, because there are two schedules.
template <class P>
__device__ __noinline__ void deal(SharedMemory<P>& shared, const Arguments& a, int slot) {
  Dealer<P>(shared, a).next(slot);
}

}  // namespace batten::impl::native::sm80
