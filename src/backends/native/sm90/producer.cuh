// The producer warpgroup: one warp copies keys and values, one the queries, and one writes the
// tiles in which there is nothing to compute.
#pragma once

#include <limits>

#include "backends/native/sm90/dealer.cuh"

namespace batten::impl::native::sm90 {

// Where a role stands in the stream of key blocks of all its tiles: block n uses stage n % 2, for
// the (n / 2)th time.
__device__ __forceinline__ int stage_of(int n) { return n & 1; }
__device__ __forceinline__ int parity_of(int n) { return n >> 1 & 1; }

// Copies the keys of block n, then the values of block n - 1: the order in which consumers need
// them. For one whole warp.
template <class P>
class BlockProducer {
 public:
  __device__ __forceinline__ BlockProducer(SharedMemory<P>& shared, const Arguments& a)
      : shared_(shared), a_(a), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run(const std::uint32_t* redo) {
    Pieces<P> pieces(shared_, a_, redo, dealt_);
    Piece piece;
    Source behind;  // the block whose values are still to come
    while (pieces.next(piece)) {
      const Tile& tile = piece.tile;
      const Extent& extent = piece.extent;
      Source here{a_.group.quotient(tile.head), extent.first_key, a_.packed != 0 ? 0 : tile.sample,
                  extent.first_key + extent.keys, kNoKey};
      if (P::kCausal && redo != nullptr) {
        here.whole = extent.first_key + visible_keys<P>(a_, extent, tile.row);
      }
#pragma unroll 1
      for (int block = 0; block < extent.blocks; ++block) {
        copy_keys(here);
        if (keys_ - values_ == 2) copy_values(behind);
        behind = here;
        here.row += P::kBlockKeys;
      }
    }
    if (keys_ > values_) copy_values(behind);
  }

 private:
  static constexpr int kNoKey = std::numeric_limits<int>::max();
  struct Source {
    int head = 0;
    int row = 0;
    int sample = 0;
    int end = 0;    // of the sample's keys
    int whole = 0;  // of the keys that all rows of the tile see; in the second pass only
  };
  using Block = typename SharedMemory<P>::Block;

  __device__ __forceinline__ void copy_keys(const Source& at) {
    const int stage = stage_of(keys_);
    wait(shared_.empty_k[stage], parity_of(keys_) ^ 1);
    copy(shared_.k[stage], a_.k, a_.k_steps, shared_.full_k[stage], at);
    ++keys_;
  }

  __device__ __forceinline__ void copy_values(const Source& at) {
    const int stage = stage_of(values_);
    wait(shared_.empty_v[stage], parity_of(values_) ^ 1);
    const int rows = at.end - at.row;  // of the sample, in this block
    const bool tail = a_.clear_tail != 0 && rows < P::kBlockKeys && at.end < a_.rows_kv;
    const bool in_part = P::kCausal && at.whole - at.row < P::kBlockKeys;
    const bool online = P::kCausal && at.whole != kNoKey;
    if (online) wait(shared_.empty_aside[stage_of(asides_)], parity_of(asides_) ^ 1);
    if (tail || in_part) {
      copy(shared_.v[stage], a_.v, a_.v_steps, shared_.raw_v, at);
      wait(shared_.raw_v, mended_ & 1);
      ++mended_;
      if (in_part) {
        set_aside(shared_.v[stage], shared_.set_aside[stage_of(asides_)]);
      } else {
        clear(shared_.v[stage], rows);
      }
      // What copies and products see is another view of the memory ("proxy") than what threads
      // write.
      cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
      __syncwarp();
      if (lane_ == 0) arrive(shared_.full_v[stage]);
    } else {
      copy(shared_.v[stage], a_.v, a_.v_steps, shared_.full_v[stage], at);
    }
    ++values_;
    if (online) {
      const int place = stage_of(asides_);
      if (lane_ == 0) shared_.set_aside[place].in_part = in_part;
      arrive(shared_.full_aside[place]);
      ++asides_;
    }
  }

  __device__ __forceinline__ void copy(Block& to, const CUtensorMap& map, const Steps& steps,
                                       Barrier& barrier, const Source& at) const {
    if (lane_ != 0) return;
    arrive_expecting(barrier, sizeof(Block));
#pragma unroll
    for (int i = 0; i < P::kPanels; ++i) {
      load_box(to.panel[i], map, barrier,
               {i * kPanelColumns, at.head * steps.head, at.row, at.sample * steps.sample});
    }
  }

  // A weight of 0 does not undo a NaN: rows from `first` on become 0.
  __device__ __forceinline__ void clear(Block& block, int first) const {
    for (int i = 0; i < P::kPanels; ++i) {
      auto* const at = reinterpret_cast<int4*>(block.panel[i] + first * kPanelRowBytes);
      const int count = (P::kBlockKeys - first) * kPanelRowBytes / 16;
      for (int n = lane_; n < count; n += 32) at[n] = int4{0, 0, 0, 0};
    }
  }

  // The same for a block of which some rows of the tile see less than others: what is not finite
  // becomes 0, and consumers learn from which key on a row sees it.
  __device__ __forceinline__ void set_aside(Block& block,
                                            typename SharedMemory<P>::SetAside& aside) const {
    constexpr bool kHalf = std::is_same_v<typename P::Element, __half>;
    constexpr std::uint32_t kInfinity = kHalf ? 0x7c00 : 0x7f80;
    constexpr std::uint32_t kNegative = 0x8000;
    const auto is_finite = [](std::uint32_t bits) { return (bits & kInfinity) != kInfinity; };
#pragma unroll 1
    for (int panel = 0; panel < P::kPanels; ++panel) {
      // Two columns a lane.
      std::uint8_t* const plus = aside.plus + panel * kPanelColumns + 2 * lane_;
      std::uint8_t* const minus = aside.minus + panel * kPanelColumns + 2 * lane_;
      plus[0] = plus[1] = minus[0] = minus[1] = P::kBlockKeys;
#pragma unroll 4
      for (int row = P::kBlockKeys - 1; row >= 0; --row) {
        auto& pair = reinterpret_cast<std::uint32_t*>(block.panel[panel] +
                                                      row * kPanelRowBytes)[lane_ ^ row % 8 * 4];
        const std::uint32_t both = pair;
        if (is_finite(both) && is_finite(both >> 16)) continue;
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t bits = both >> 16 * half & 0xffff;
          if (is_finite(bits)) continue;
          pair &= half == 0 ? 0xffff0000u : 0xffffu;
          if (bits != (kInfinity | kNegative)) plus[half] = static_cast<std::uint8_t>(row);
          if (bits != kInfinity) minus[half] = static_cast<std::uint8_t>(row);
        }
      }
    }
  }

  SharedMemory<P>& shared_;
  const Arguments& a_;
  const int lane_;
  int keys_ = 0;    // blocks copied so far
  int values_ = 0;  // likewise
  int mended_ = 0;  // uses of raw_v
  int asides_ = 0;  // uses of set_aside: a block's each, in the second pass
  int dealt_ = 0;   // pieces that the dealer had
};

// Copies each group's rows of a tile's queries, and says what the tile is. For one whole warp.
template <class P>
class QueryProducer {
 public:
  __device__ __forceinline__ QueryProducer(SharedMemory<P>& shared, const Arguments& a)
      : shared_(shared), a_(a) {}

  __device__ __forceinline__ void run(const std::uint32_t* redo) {
    Pieces<P> pieces(shared_, a_, redo, dealt_);
    Piece piece;
    while (pieces.next(piece)) {
      const Extent& extent = piece.extent;
      if (extent.blocks == 0) continue;
      const Place place = place_of(a_, piece.tile, extent);
      // With a single stage the copy has little time: from the L2 cache it takes half as long.
      if (P::kQueryStages == 1) prefetch(place);
      if (P::kJoins && piece.part >= 0) {
        hand_out(
            {place, extent.blocks, place.row + kTileRows, extent.keys, piece.part, pieces.round()},
            place);
        continue;
      }
      if (P::kDivides && piece.part >= 0) {
        hand_out({{.sample_or_end = piece.part},
                  extent.blocks,
                  kTileRows,
                  extent.keys,
                  0,
                  pieces.round()},
                 place);
        continue;
      }
      const int shift = a_.bottom_right != 0 ? extent.keys - extent.queries : 0;
      hand_out({place, extent.blocks, extent.first_row + extent.queries, extent.keys,
                shift - extent.first_row, pieces.round()},
               place);
    }
    hand_out({}, {});
  }

 private:
  // `place`: where the queries are; the record has where the output goes.
  __device__ __forceinline__ void hand_out(const TileRecord& tile, const Place& place) {
    const int stage = tiles_ % P::kQueryStages;
#pragma unroll 1
    for (int group = 0; group < P::kGroups; ++group) {
      wait(shared_.empty_q[stage][group], (tiles_ / P::kQueryStages & 1) ^ 1);
      if (threadIdx.x % 32 != 0) continue;
      shared_.tile[stage][group] = tile;
      if (tile.blocks > 0) {
        copy(stage, group, place);
      } else {
        arrive(shared_.full_q[stage][group]);
      }
    }
    ++tiles_;
  }

  // From row r of the tile on.
  __device__ __forceinline__ Coordinates box(const Place& place, int r, int panel) const {
    int head = place.head;
    if constexpr (P::kDivides) {
      head += r >> a_.division.box_log2;
      r &= (1 << a_.division.box_log2) - 1;
    }
    return {panel * kPanelColumns, head * a_.q_steps.head, place.row + r,
            place.sample(a_) * a_.q_steps.sample};
  }

  // Rows that one copy brings: a group's, or those of a head.
  __device__ __forceinline__ int box_rows() const {
    return P::kDivides ? min(1 << a_.division.box_log2, P::kGroupRows) : P::kGroupRows;
  }

  __device__ __forceinline__ void prefetch(const Place& place) const {
    if (threadIdx.x % 32 != 0) return;
#pragma unroll 1
    for (int r = 0; r < P::kTileRows; r += box_rows()) {
      for (int i = 0; i < P::kPanels; ++i) prefetch_box(a_.q, box(place, r, i));
    }
  }

  // Where heads that share a tile end, other rows come, or zeros: nobody uses them.
  __device__ __forceinline__ void copy(int stage, int group, const Place& place) const {
    auto& to = shared_.q[stage][group];
    auto& barrier = shared_.full_q[stage][group];
    arrive_expecting(barrier, sizeof(to));
#pragma unroll 1
    for (int r = 0; r < P::kGroupRows; r += box_rows()) {
#pragma unroll
      for (int i = 0; i < P::kPanels; ++i) {
        load_box(to.panel[i] + r * kPanelRowBytes, a_.q, barrier,
                 box(place, group * P::kGroupRows + r, i));
      }
    }
  }

  SharedMemory<P>& shared_;
  const Arguments& a_;
  int tiles_ = 0;
  int dealt_ = 0;  // pieces that the dealer had
};

}  // namespace batten::impl::native::sm90
