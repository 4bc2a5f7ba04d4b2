// Parts of tiles without a second launch. A CTA first puts aside its part of a tile that it does
// not begin, and computes last the part with a tile's first keys: to this it adds the others, which
// CTAs before it have put aside. Nobody waits for a CTA that comes after.
#pragma once

#include <cuda/atomic>

#include "backends/native/shared/schedule.cuh"
#include "backends/native/shared/share.hpp"

namespace batten::impl::native::sm90 {

// Join::states, beside its mark.
enum PartState : std::uint64_t {
  kReady = 1,
  kAgain = 2,   // something is not finite: it will be computed again
  kRedone = 3,  // it has been: who finds this in the first pass takes it for kAgain, so that no
                // result depends on who was faster
};

// The pieces of a CTA: those of its share, and before the one with kFirst the whole tiles of its
// rounds. Piece::part is the Role of a share's, and -1 else.
template <class P>
class JoinedSchedule {
 public:
  // With `redo` only the pieces whose bit is set.
  __device__ __forceinline__ explicit JoinedSchedule(const std::uint32_t* redo) : redo_(redo) {}

  // Which of the CTA's pieces next() found.
  __device__ __forceinline__ int round() const { return round_ - 1; }

  __device__ __forceinline__ bool next(const Arguments& a, Piece& piece) {
    const int number = Share::number_of(a.division, static_cast<int>(blockIdx.x));
    if (round_ == 0 && number >= 0) share_ = Share(a.division, number);
    for (;;) {
      const int round = round_++;
      const int index = tiles_ * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
      SharePiece part{.role = kFirst};
      if (!share_.is_done()) part = share_.next(a.division);
      if (part.role == kFirst && index < a.tiles) {
        ++tiles_;
        piece.tile = tile_at(a, index);
        piece.extent = extent_of<P>(a, piece.tile);
        piece.part = -1;
      } else if (!share_.is_done()) {
        share_.pass(part);
        piece = piece_of(a.division, part);
      } else {
        return false;
      }
      if (redo_ == nullptr) return true;
      const int bit = round >> a.redo_shift;
      if ((redo_[bit / 32] >> bit % 32 & 1) != 0) return true;
    }
  }

 private:
  static __device__ __forceinline__ Piece piece_of(const Division& d, const SharePiece& part) {
    const TileRows rows = d.rows_of(part.tile);
    Piece piece{.tile = {rows.sample, rows.head, rows.row}, .part = part.role};
    piece.extent.first_key = part.first * P::kBlockKeys;
    piece.extent.keys = min(d.keys, part.end * P::kBlockKeys) - piece.extent.first_key;
    piece.extent.blocks = part.end - part.first;
    return piece;
  }

  static __device__ __forceinline__ Tile tile_at(const Arguments& a, int index) {
    const int head = a.per_head.quotient(index);
    const int sample = a.heads.quotient(head);
    return {sample, head - sample * a.num_heads, (index - head * a.row_tiles) * kTileRows};
  }

  const std::uint32_t* redo_;
  int round_ = 0;
  int tiles_ = 0;  // whole ones so far
  Share share_;
};

__device__ __forceinline__ void set_state(std::uint64_t* state, std::uint64_t value) {
  cuda::atomic_ref<std::uint64_t, cuda::thread_scope_device>(*state).store(
      value, cuda::memory_order_release);
}
__device__ __forceinline__ std::uint64_t state_of(std::uint64_t* state) {
  return cuda::atomic_ref<std::uint64_t, cuda::thread_scope_device>(*state).load(
      cuda::memory_order_acquire);
}

}  // namespace batten::impl::native::sm90
