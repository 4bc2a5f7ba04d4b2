// The shared memory of a CTA, and who waits for whom in it.
#pragma once

#include <cstdint>

#include "backends/native/limits.hpp"
#include "backends/native/shared/deal.cuh"
#include "backends/native/shared/record.cuh"
#include "backends/native/sm90/policy.cuh"

namespace batten::impl::native::sm90 {

// Words of SharedMemory::redo.
inline constexpr int kRedoWords = kRedoBits / 32;

// Pieces that the dealer is ahead of those who copy.
inline constexpr int kDealStages = 2;

template <class P>
struct SharedMemory {
  static constexpr int kRowBytes = kPanelRowBytes;

  // Each panel has 64 columns: rows of 128 bytes, swizzled.
  struct Rows {
    std::uint8_t panel[P::kPanels][P::kRowsPanelBytes];
  };
  struct Block {
    std::uint8_t panel[P::kPanels][P::kBlockPanelBytes];
  };

  Rows q[P::kQueryStages][P::kGroups];  // each group's own rows
  Block k[P::kStages];
  Block v[P::kStages];
  struct None {};
  using Staging = std::conditional_t<P::kStagesOutput, Rows, None>;
  Staging out[P::kGroups];  // on its way out; each warp's rows are its own

  // full_*: the copy has arrived. empty_*: nobody reads what was there any more.
  Barrier full_q[P::kQueryStages][P::kGroups], empty_q[P::kQueryStages][P::kGroups];
  Barrier full_k[P::kStages], empty_k[P::kStages];
  Barrier full_v[P::kStages], empty_v[P::kStages];
  Barrier raw_v;  // values that the producer mends before anyone else reads them

  TileRecord tile[P::kQueryStages][P::kGroups];

  // What the dealer has for the two that copy; they have read it.
  Dealt dealt[kDealStages];
  Barrier full_dealt[kDealStages], empty_dealt[kDealStages];

  // Tiles to be computed again, a bit for each of this CTA's (or for 2^redo_shift of them).
  std::uint32_t redo[kRedoWords];

  // Values that are not finite, taken out of a block that not all rows of a tile see: for each
  // column the first key of the block that has +infinity or NaN, and -infinity or NaN; kBlockKeys
  // if none has.
  struct SetAside {
    static constexpr int kColumns = P::kCausal ? P::kPanels * kPanelColumns : 1;
    std::uint8_t plus[kColumns];
    std::uint8_t minus[kColumns];
    int in_part;  // 0: all rows see the block, and nothing was taken out
  };
  static_assert(P::kBlockKeys <= 255);
  SetAside set_aside[P::kStages];
  // Of set_aside: each lane of the producer arrives at the first, each consumer at the second.
  Barrier full_aside[P::kStages], empty_aside[P::kStages];
};

// Named barriers; 0 is __syncthreads.
enum NamedBarrier : int {
  kFirstTurn = 1,  // and one more: a group's turn to issue its products
  kPassDone = 3,   // all tiles are through, and SharedMemory::redo is complete
};

}  // namespace batten::impl::native::sm90
