// The forward kernel: the roles of a CTA. docs/kernels/sm90.md draws how they work together.
#pragma once

#include "backends/native/shared/empty_tiles.cuh"
#include "backends/native/shared/follow.cuh"
#include "backends/native/sm90/joined_output.cuh"
#include "backends/native/sm90/online.cuh"
#include "backends/native/sm90/output.cuh"

namespace batten::impl::native::sm90 {

template <class P>
__device__ __forceinline__ void prepare(SharedMemory<P>& shared, const Arguments& a) {
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a.q, &a.k, &a.v, &a.out}) prefetch_map(*map);
    for (int i = 0; i < P::kQueryStages; ++i) {
      for (int group = 0; group < P::kGroups; ++group) {
        cuda::ptx::mbarrier_init(&shared.full_q[i][group], 1);
        cuda::ptx::mbarrier_init(&shared.empty_q[i][group], P::kGroupRows / P::kWarpRows);
      }
    }
    for (int i = 0; i < P::kStages; ++i) {
      cuda::ptx::mbarrier_init(&shared.full_k[i], 1);
      cuda::ptx::mbarrier_init(&shared.empty_k[i], P::kGroups);
      cuda::ptx::mbarrier_init(&shared.full_v[i], 1);
      cuda::ptx::mbarrier_init(&shared.empty_v[i], P::kGroups);
      if constexpr (!P::kCausal) continue;
      cuda::ptx::mbarrier_init(&shared.full_aside[i], 32);
      cuda::ptx::mbarrier_init(&shared.empty_aside[i], P::kGroups * 128);
    }
    for (int i = 0; i < kDealStages; ++i) {
      cuda::ptx::mbarrier_init(&shared.full_dealt[i], 1);
      cuda::ptx::mbarrier_init(&shared.empty_dealt[i], 2 * 32);
    }
    cuda::ptx::mbarrier_init(&shared.raw_v, 1);
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }
  if (threadIdx.x < kRedoWords) shared.redo[threadIdx.x] = a.online != 0 ? ~0u : 0u;
  // Up to here the launch before may still be under way, and from here on the next one may begin.
  wait_for_launch_before();
  __syncthreads();
}

// For all who take part in tiles: SharedMemory::redo is complete after this. True: it is empty.
template <class P>
__device__ __forceinline__ bool all_done(const SharedMemory<P>& shared, const Arguments& a) {
  // Where nothing is dealt it could be a constant too: with one, ptxas schedules the consumer
  // otherwise than in the kernel that was timed (docs/kernels/sm90.md, "Experiments").
  const int producers = P::kDeals || a.deal.samples != nullptr ? 3 : 2;
  named_barrier_sync(kPassDone, P::kGroups * 128 + producers * 32);
  return __all_sync(~0u, shared.redo[threadIdx.x % kRedoWords] == 0);
}

template <class P>
__device__ __forceinline__ void consume(SharedMemory<P>& shared, const Arguments& a, int group) {
  Consumer<P> consumer(shared, a, group);
  if (a.online == 0) consumer.run_lazy();
  if (!all_done(shared, a)) consumer.run_online();
  consumer.finish();
}

template <class P, class Producer>
__device__ __forceinline__ void produce(SharedMemory<P>& shared, const Arguments& a) {
  Producer producer(shared, a);
  if (a.online == 0) producer.run(nullptr);
  if (!all_done(shared, a)) producer.run(shared.redo);
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, 1) forward(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& shared = *reinterpret_cast<SharedMemory<P>*>(memory);
  prepare(shared, a);
  // Roles by warpgroup; the compiler must see that a warp has one role.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    give_up_registers<P::kProducerRegisters>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) produce<P, BlockProducer<P>>(shared, a);
    if (warp == 1) produce<P, QueryProducer<P>>(shared, a);
    if (warp == 2) write_empty_tiles<P>(a);
    if constexpr (P::kDeals) {
      if (warp == 3) produce<P, Dealer<P>>(shared, a);
    }
  } else {
    take_registers<P::kConsumerRegisters>();
    consume(shared, a, warpgroup - 1);
  }
}

}  // namespace batten::impl::native::sm90
