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
  const Dealer<P> dealer(shared, a);
  Output<P> tile(shared, a);
  if (threadIdx.x == 0) dealer.begin();

  // Whether the tile is computed again. In memory, to have the register; each thread has its own.
  const auto again = [&]() -> std::uint8_t& {
    return shared.again[here(static_cast<int>(threadIdx.x))];
  };
  again() = 0;
  // The first time there is nothing to compute yet.
#pragma unroll 1
  for (bool is_first = true;; is_first = false) {
    // Everyone sees it behind the next barrier.
    if (threadIdx.x < 32 && again() == 0) dealer.advance(is_first);
    if (is_first) {
      __syncthreads();
      if (shared.next.tile.blocks == 0) break;
      tile.fetch(shared.next);
      __syncthreads();
      continue;
    }
    bool finite;
    if (again() != 0 || a.online != 0) {
      tile.template compute<Softmax::online>();
      finite = tile.template store<Softmax::online>();
    } else {
      tile.template compute<Softmax::lazy>();
      finite = tile.template store<Softmax::lazy>();
    }
    const bool is_last = shared.next.tile.blocks == 0;
    // Also: nobody needs the two tasks any more.
    if (__syncthreads_or(!finite) && again() == 0 && a.online == 0) {
      // What was copied for the next tile is copied again, when this one is done.
      wait_for_copies();
      __syncthreads();
      tile.fetch(shared.current);
      if (threadIdx.x == 0) ++shared.redone;
      again() = 1;
      continue;
    }
    if (is_last) break;
    again() = 0;
  }
  wait_for_copies();  // of zeros, where no tile comes
  if (threadIdx.x == 0 && shared.redone > 0 && a.redone != nullptr) report_redone(a, shared.redone);
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
