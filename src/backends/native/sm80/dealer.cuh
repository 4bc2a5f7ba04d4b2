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
    if (is_first_lane() && !is_first) shared_.current = shared_.next;
    describe(takes()          ? taken(is_first)
             : a_.causal != 0 ? next_of(shared_.causal)
                              : next_of(shared_.full));
  }

 private:
  static __device__ __forceinline__ bool is_first_lane() { return threadIdx.x % 32 == 0; }

  __device__ __forceinline__ bool takes() const { return a_.deal.samples != nullptr; }

  // Pieces are the first lane's; of no blocks: there are no more.

  // Where samples differ in length, a CTA has one tile of the list, that with its number.
  __device__ __forceinline__ Piece taken(bool is_first) const {
    Deck deck;
    const auto tile = static_cast<int>(blockIdx.x);
    const int at = is_first ? deck.find(a_.deal, tile) : -1;
    if (at < 0 || !is_first_lane()) return {};
    return a_.causal != 0 ? piece_of<Tiling<P, true>>(a_, at, tile)
                          : piece_of<Tiling<P, false>>(a_, at, tile);
  }

  template <class T>
  __device__ __forceinline__ Piece next_of(Schedule<T>& schedule) const {
    Piece piece;
    while (is_first_lane() && schedule.next(a_, piece)) {
      if (piece.extent.blocks > 0) return piece;
      shared_.has_empty_tiles = 1;
    }
    return {};
  }

  __device__ __forceinline__ void describe(const Piece& piece) const {
    const Extent& extent = piece.extent;
    const Place place = place_of(a_, piece.tile, extent);
    const int sample = place.sample(a_);
    const int key_head = a_.group.quotient(place.head);
    if (is_first_lane()) {
      const int shift = a_.bottom_right != 0 ? extent.keys - extent.queries : 0;
      TileRecord& record = shared_.next.tile;
      Source& source = shared_.next.source;
      if (piece.part < 0) {
        record = {place, extent.blocks, extent.first_row + extent.queries, extent.keys,
                  shift - extent.first_row};
        source.rows = extent.queries - piece.tile.row;
        source.heads = 1;
        source.box_log2 = kNoBoxes;
      } else {
        record = {{.sample_or_end = piece.part}, extent.blocks, kTileRows, extent.keys};
        source.rows = a_.division.rows - piece.tile.row;
        const int behind = (key_head + 1) * a_.group.value() - place.head;
        source.heads = min(a_.division.heads_of_tile, behind);
        source.box_log2 = a_.division.box_log2;
      }
    }
    find_begin(sample, place.row, place.head, extent.first_key, key_head);
  }

  // Of queries, keys and values, a lane each: one after another they would take three times as
  // many instructions, for which all of the CTA waits.
  __device__ __forceinline__ void find_begin(int sample, int row, int head, int first_key,
                                             int key_head) const {
    const auto of_first_lane = [](int n) { return __shfl_sync(~0u, n, 0); };
    const auto lane = static_cast<int>(threadIdx.x);
    sample = of_first_lane(sample);
    const int query = of_first_lane(row);
    const int query_head = of_first_lane(head);
    const int key = of_first_lane(first_key);
    const int head_of_keys = of_first_lane(key_head);
    __syncwarp();  // what was next has become the current task
    if (lane >= kOperands) return;
    const Layout& layout = a_.operands[lane].layout;
    const std::int64_t element = sample * layout.batch + (lane == 0 ? query : key) * layout.row +
                                 (lane == 0 ? query_head : head_of_keys) * layout.head;
    shared_.next.source.begin[lane] =
        static_cast<const std::uint8_t*>(a_.operands[lane].data) + element * 2;
  }

  static constexpr int kNoBoxes = 31;

  SharedMemory<P>& shared_;
  const Arguments& a_;
};

}  // namespace batten::impl::native::sm80
