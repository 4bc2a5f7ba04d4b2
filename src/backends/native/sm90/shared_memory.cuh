// The shared memory of a CTA, and who waits for whom in it.
#pragma once

#include <cstdint>

#include "backends/native/sm90/policy.cuh"

namespace batten::impl::native::sm90 {

// Words of SharedMemory::redo.
inline constexpr int kRedoWords = 16;
inline constexpr int kRedoBits = 32 * kRedoWords;

// What a consumer must know of a tile; the query producer leaves it beside the queries.
struct __align__(16) TileRecord {
  std::int32_t sample, head, row;
  std::int32_t blocks;  // of keys; 0: there are no more tiles
  std::int32_t queries, keys;
  std::int32_t shift;  // causal: row i sees i + 1 + shift keys
  std::int32_t round;  // in which the tile was dealt
};

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
  Rows out[P::kGroups];  // on its way out; each warp's rows are its own

  // full_*: the copy has arrived. empty_*: nobody reads what was there any more.
  Barrier full_q[P::kQueryStages][P::kGroups], empty_q[P::kQueryStages][P::kGroups];
  Barrier full_k[P::kStages], empty_k[P::kStages];
  Barrier full_v[P::kStages], empty_v[P::kStages];
  Barrier tail_v;  // the last values of a sample, before the producer has cleared what follows them

  TileRecord tile[P::kQueryStages][P::kGroups];

  // Tiles to be computed again, a bit for each of this CTA's (or for 2^redo_shift of them).
  std::uint32_t redo[kRedoWords];
};

// Named barriers; 0 is __syncthreads.
enum NamedBarrier : int {
  kFirstTurn = 1,  // and one more: a group's turn to issue its products
  kPassDone = 3,   // all tiles are through, and SharedMemory::redo is complete
};

}  // namespace batten::impl::native::sm90
