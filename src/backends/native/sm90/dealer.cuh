// Who says what a CTA computes next: the schedule, or one warp that takes tiles from all CTAs'
// list.
#pragma once

#include "backends/native/shared/deal.cuh"
#include "backends/native/sm90/join.cuh"
#include "backends/native/sm90/shared_memory.cuh"

namespace batten::impl::native::sm90 {

// Takes tiles, and hands them to the warps that copy. For one whole warp.
template <class P>
class Dealer {
 public:
  __device__ __forceinline__ Dealer(SharedMemory<P>& shared, const Arguments& a)
      : shared_(shared), a_(a) {}

  __device__ __forceinline__ void run(const std::uint32_t* redo) {
    Deck deck;
    if (redo == nullptr || a_.online != 0) {
      // A CTA that has had as many tiles as it can remember leaves the rest to others: it takes no
      // number that it does not use.
      for (int round = 0; round < kRedoBits;) {
        const int tile = take();
        const int at = deck.find(a_.deal, tile);
        if (at < 0) break;
        if (!hand_out(at, tile, round)) continue;
        if (lane() == 0) own()[round] = tile;
        ++round;
      }
    } else {
      for (int round = 0; round < kRedoBits; ++round) {
        if ((redo[round / 32] >> round % 32 & 1) == 0) continue;
        const int tile = __shfl_sync(~0u, own()[round], 0);
        hand_out(deck.find(a_.deal, tile), tile, round);
      }
    }
    wait_for_slot();
    if (lane() == 0) shared_.dealt[slot()].piece.extent.blocks = 0;
    give_slot();
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ std::int32_t* own() const {
    return a_.deal.taken + blockIdx.x * kRedoBits;
  }
  __device__ __forceinline__ int take() const {
    const unsigned number = lane() == 0 ? atomicAdd(a_.deal.next, 1u) : 0;
    return static_cast<int>(__shfl_sync(~0u, number, 0));
  }

  // False: nothing is to be computed in it.
  __device__ __forceinline__ bool hand_out(int at, int tile, int round) {
    wait_for_slot();
    const Piece piece = piece_of<P>(a_, at, tile);
    if (piece.extent.blocks == 0) return false;
    if (lane() == 0) shared_.dealt[slot()] = {piece, round};
    give_slot();
    return true;
  }

  __device__ __forceinline__ int slot() const { return dealt_ % kDealStages; }
  __device__ __forceinline__ void wait_for_slot() {
    wait(shared_.empty_dealt[slot()], (dealt_ / kDealStages & 1) ^ 1);
  }
  __device__ __forceinline__ void give_slot() {
    if (lane() == 0) arrive(shared_.full_dealt[slot()]);
    ++dealt_;
  }

  SharedMemory<P>& shared_;
  const Arguments& a_;
  int dealt_ = 0;
};

// What the CTA computes, piece by piece, for one of the warps that copy.
template <class P>
class Pieces {
 public:
  // `dealt`: how many the dealer has had for this warp.
  __device__ __forceinline__ Pieces(SharedMemory<P>& shared, const Arguments& a,
                                    const std::uint32_t* redo, int& dealt)
      : shared_(shared), a_(a), schedule_(redo), dealt_(dealt) {}

  __device__ __forceinline__ bool next(Piece& piece) {
    if constexpr (!P::kDeals) {
      const bool is = schedule_.next(a_, piece);
      round_ = schedule_.round();
      return is;
    }
    const int stage = dealt_ % kDealStages;
    wait(shared_.full_dealt[stage], dealt_ / kDealStages & 1);
    ++dealt_;
    // A word a lane: all have been used, and not only asked for, before the slot is given back.
    constexpr int kWords = sizeof(Dealt) / 4;
    const int lane = threadIdx.x % 32;
    const int mine = reinterpret_cast<const int*>(&shared_.dealt[stage])[min(lane, kWords - 1)];
    int words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = __shfl_sync(~0u, mine, i);
    arrive(shared_.empty_dealt[stage]);
    piece = {{words[0], words[1], words[2]},
             {words[3], words[4], words[5], words[6], words[7]},
             words[8]};
    round_ = words[9];
    return piece.extent.blocks > 0;
  }

  // Which of the CTA's pieces next() found.
  __device__ __forceinline__ int round() const { return round_; }

 private:
  SharedMemory<P>& shared_;
  const Arguments& a_;
  std::conditional_t<P::kJoins, JoinedSchedule<P>, Schedule<P>> schedule_;
  int& dealt_;
  int round_ = 0;
};

}  // namespace batten::impl::native::sm90
