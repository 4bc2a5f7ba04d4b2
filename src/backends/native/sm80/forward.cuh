// The forward kernel for GPUs without the tensor memory accelerator. docs/kernels/sm80.md draws how
// a CTA works.
#pragma once

#include "backends/native/instance.hpp"
#include "backends/native/shared/empty_tiles.cuh"
#include "backends/native/shared/redone.cuh"
#include "backends/native/sm80/dealer.cuh"
#include "backends/native/sm80/output.cuh"

namespace batten::impl::native::sm80 {

template <class P>
__device__ __forceinline__ void compute_tiles(SharedMemory<P>& shared, const Arguments& a) {
  if (shared.tile[0].blocks == 0) return;
  Output<P> tile(shared, a);
  tile.fetch(0);

  unsigned redone = 0;
  bool again = false;
  int slot = 0;
#pragma unroll 1
  for (;;) {
    const TileRecord& record = shared.tile[slot];
    // Everyone sees it behind the first barrier in compute().
    if (threadIdx.x == 0 && !again) deal(shared, a, 1 - slot);
    bool finite;
    if (again || a.online != 0) {
      tile.template compute<Softmax::online>(slot);
      finite = tile.template store<Softmax::online>(record);
    } else {
      tile.template compute<Softmax::lazy>(slot);
      finite = tile.template store<Softmax::lazy>(record);
    }
    // Also: nobody needs the record any more.
    const bool redo = __syncthreads_or(!finite) && !again && a.online == 0;
    if (redo) {
      // What was copied for the next tile is copied again, when this one is done.
      wait_for_copies();
      __syncthreads();
      tile.fetch(slot);
      ++redone;
      again = true;
      continue;
    }
    again = false;
    slot = 1 - slot;
    if (shared.tile[slot].blocks == 0) break;
  }
  if (threadIdx.x == 0 && redone > 0 && a.redone != nullptr) report_redone(a, redone);
}

// For one whole warp.
template <class P>
__device__ __noinline__ void write_empty_tiles_of(const Arguments& a) {
  if (a.causal != 0) {
    write_empty_tiles<Tiling<P, true>>(a);
  } else {
    write_empty_tiles<Tiling<P, false>>(a);
  }
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, P::kCtas)
    forward(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<SharedMemory<P>*>(memory);
  if (threadIdx.x < 32) begin_dealing(shared, a);
  __syncthreads();
  compute_tiles(shared, a);
  if (threadIdx.x < 32 && shared.has_empty_tiles != 0) write_empty_tiles_of<P>(a);
}

template <class P>
Instance describe(DType dtype) {
  static_assert(sizeof(SharedMemory<P>) <= P::kConfiguration.shared_bytes());
  Instance i;
  i.dtype = dtype;
  i.head_dim = P::kHeadDim;
  i.rows = P::kTileRows;
  i.keys = P::kBlockKeys;
  i.threads = P::kThreads;
  i.shared_bytes = static_cast<int>(sizeof(SharedMemory<P>));
  i.function = reinterpret_cast<const void*>(&forward<P>);
  return i;
}

}  // namespace batten::impl::native::sm80
