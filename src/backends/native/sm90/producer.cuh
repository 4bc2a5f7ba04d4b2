// The producer warpgroup: one warp copies keys and values, one the queries, and one writes the tiles
// in which there is nothing to compute.
#pragma once

#include "backends/native/sm90/schedule.cuh"

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
    Schedule<P> schedule(redo);
    Tile tile;
    Place behind;  // the block whose values are still to come
    while (schedule.next(a_, tile)) {
      const Extent extent = extent_of<P>(a_, tile);
      Place here{a_.group.quotient(tile.head), 0, tile.sample, extent.keys};
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
  struct Place {
    int head = 0;
    int row = 0;
    int sample = 0;
    int end = 0;  // of the sample's keys
  };
  using Block = typename SharedMemory<P>::Block;

  __device__ __forceinline__ void copy_keys(const Place& at) {
    const int stage = stage_of(keys_);
    wait(shared_.empty_k[stage], parity_of(keys_) ^ 1);
    copy(shared_.k[stage], a_.k, a_.k_steps, shared_.full_k[stage], at);
    ++keys_;
  }

  __device__ __forceinline__ void copy_values(const Place& at) {
    const int stage = stage_of(values_);
    wait(shared_.empty_v[stage], parity_of(values_) ^ 1);
    const int rows = at.end - at.row;  // of the sample, in this block
    if (a_.clear_tail != 0 && rows < P::kBlockKeys && at.end < a_.max_kv) {
      copy(shared_.v[stage], a_.v, a_.v_steps, shared_.tail_v, at);
      wait(shared_.tail_v, tails_ & 1);
      ++tails_;
      clear(shared_.v[stage], rows);
      if (lane_ == 0) arrive(shared_.full_v[stage]);
    } else {
      copy(shared_.v[stage], a_.v, a_.v_steps, shared_.full_v[stage], at);
    }
    ++values_;
  }

  __device__ __forceinline__ void copy(Block& to, const CUtensorMap& map, const Steps& steps,
                                       Barrier& barrier, const Place& at) const {
    if (lane_ != 0) return;
    arrive_expecting(barrier, sizeof(Block));
#pragma unroll
    for (int i = 0; i < P::kPanels; ++i) {
      load_box(to.panel[i], map, barrier,
               {i * kPanelColumns, at.head * steps.head, at.row, at.sample * steps.sample});
    }
  }

  // A weight of 0 does not undo a NaN: rows from `first` on become 0. What copies and products see
  // is another view of the memory ("proxy") than what threads write, hence the fence.
  __device__ __forceinline__ void clear(Block& block, int first) const {
    for (int i = 0; i < P::kPanels; ++i) {
      auto* const at = reinterpret_cast<int4*>(block.panel[i] + first * kPanelRowBytes);
      const int count = (P::kBlockKeys - first) * kPanelRowBytes / 16;
      for (int n = lane_; n < count; n += 32) at[n] = int4{0, 0, 0, 0};
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncwarp();
  }

  SharedMemory<P>& shared_;
  const Arguments& a_;
  const int lane_;
  int keys_ = 0;    // blocks copied so far
  int values_ = 0;  // likewise
  int tails_ = 0;   // uses of tail_v
};

// Copies each group's rows of a tile's queries, and says what the tile is. For one whole warp.
template <class P>
class QueryProducer {
 public:
  __device__ __forceinline__ QueryProducer(SharedMemory<P>& shared, const Arguments& a)
      : shared_(shared), a_(a) {}

  __device__ __forceinline__ void run(const std::uint32_t* redo) {
    Schedule<P> schedule(redo);
    Tile tile;
    while (schedule.next(a_, tile)) {
      const Extent extent = extent_of<P>(a_, tile);
      if (extent.blocks == 0) continue;
      // With a single stage the copy has little time: from the L2 cache it takes half as long.
      if (P::kQueryStages == 1) prefetch(tile);
      hand_out({tile.sample, tile.head, tile.row, extent.blocks, extent.queries, extent.keys,
                a_.bottom_right != 0 ? extent.keys - extent.queries : 0, schedule.round()});
    }
    hand_out({});
  }

 private:
  __device__ __forceinline__ void hand_out(const TileRecord& tile) {
    const int stage = tiles_ % P::kQueryStages;
#pragma unroll 1
    for (int group = 0; group < P::kGroups; ++group) {
      wait(shared_.empty_q[stage][group], (tiles_ / P::kQueryStages & 1) ^ 1);
      if (threadIdx.x % 32 != 0) continue;
      shared_.tile[stage][group] = tile;
      if (tile.blocks > 0) {
        copy(stage, group, tile);
      } else {
        arrive(shared_.full_q[stage][group]);
      }
    }
    ++tiles_;
  }

  __device__ __forceinline__ void prefetch(const Tile& tile) const {
    if (threadIdx.x % 32 != 0) return;
    for (int group = 0; group < P::kGroups; ++group) {
      for (int i = 0; i < P::kPanels; ++i) {
        prefetch_box(a_.q, {i * kPanelColumns, tile.head * a_.q_steps.head,
                            tile.row + group * P::kGroupRows, tile.sample * a_.q_steps.sample});
      }
    }
  }

  __device__ __forceinline__ void copy(int stage, int group, const TileRecord& tile) const {
    auto& to = shared_.q[stage][group];
    auto& barrier = shared_.full_q[stage][group];
    arrive_expecting(barrier, sizeof(to));
#pragma unroll
    for (int i = 0; i < P::kPanels; ++i) {
      load_box(to.panel[i], a_.q, barrier,
               {i * kPanelColumns, tile.head * a_.q_steps.head, tile.row + group * P::kGroupRows,
                tile.sample * a_.q_steps.sample});
    }
  }

  SharedMemory<P>& shared_;
  const Arguments& a_;
  int tiles_ = 0;
};

// Writes the tiles whose rows see no key. For one whole warp.
template <class P>
__device__ __forceinline__ void write_empty_tiles(const Arguments& a) {
  const int lane = threadIdx.x % 32;
  const int vectors = P::kHeadDim * (a.output_is_f32 != 0 ? 4 : 2) / 16;
  Schedule<P> schedule;
  Tile tile;
  while (schedule.next(a, tile)) {
    if (extent_of<P>(a, tile).blocks > 0) continue;
    const int end = min(tile.row + P::kTileRows, a.max_q);
    for (int row = tile.row; row < end; ++row) {
      int4* const out = reinterpret_cast<int4*>(
          a.output_is_f32 != 0 ? static_cast<void*>(row_of_output<float>(a, tile, row))
                               : row_of_output<typename P::Element>(a, tile, row));
      for (int i = lane; i < vectors; i += 32) out[i] = int4{0, 0, 0, 0};
      if (lane == 0 && a.lse != nullptr) *lse_of_row(a, tile, row) = -INFINITY;
    }
  }
}

}  // namespace batten::impl::native::sm90
