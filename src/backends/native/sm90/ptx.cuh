// The instructions that CUDA C++ has no words for. What cuda::ptx has is used from there; each of
// the others names its section of the PTX ISA.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cuda/ptx>

namespace batten::impl::native::sm90 {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers and the bulk copies that complete on them --------------------------------------

using Barrier = std::uint64_t;

// The phase with this parity (0: the first) has completed.
__device__ __forceinline__ void wait(Barrier& barrier, int parity) {
  while (!cuda::ptx::mbarrier_try_wait_parity(&barrier, static_cast<std::uint32_t>(parity))) {
  }
}

__device__ __forceinline__ void arrive(Barrier& barrier) {
  cuda::ptx::mbarrier_arrive(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                             &barrier);
}

// Arrives; the phase completes when `bytes` more have been copied.
__device__ __forceinline__ void arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
  cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta,
                                       cuda::ptx::space_shared, &barrier, bytes);
}

struct Coordinates {
  std::int32_t column, head, row, sample;
};

__device__ __forceinline__ void load_box(void* to, const CUtensorMap& map, Barrier& barrier,
                                         const Coordinates& at) {
  const std::int32_t position[4] = {at.column, at.head, at.row, at.sample};
  cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global, to, &map,
                                  position, &barrier);
}

__device__ __forceinline__ void store_box(const CUtensorMap& map, const void* from,
                                          const Coordinates& at) {
  const std::int32_t position[4] = {at.column, at.head, at.row, at.sample};
  cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_global, cuda::ptx::space_shared, &map, position,
                                  from);
}

// "cp.async.bulk.prefetch.tensor": brings a box into the L2 cache.
__device__ __forceinline__ void prefetch_box(const CUtensorMap& map, const Coordinates& at) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map),
               "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.sample)
               : "memory");
}

// "prefetch": brings a tensor map into the descriptor cache.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// ---- roles ------------------------------------------------------------------------------------

// "setmaxnreg": a warpgroup gives up, or waits for, registers.
template <int registers>
__device__ __forceinline__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// "barrier": one of a CTA's sixteen barriers, for `threads` of its threads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- arithmetic -------------------------------------------------------------------------------

// "ex2": 2^x, subnormal results flushed to 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// "ldmatrix": the opposite of store_blocks.
__device__ __forceinline__ void load_blocks(std::uint32_t (&blocks)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
               : "r"(address)
               : "memory");
}

// "stmatrix": four 8x8 blocks of 16-bit elements, as products leave them in registers, to rows of
// 16 bytes; lane 8 i + r gives the address of row r of block i.
__device__ __forceinline__ void store_blocks(std::uint32_t address,
                                             const std::uint32_t (&blocks)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(blocks[0]), "r"(blocks[1]), "r"(blocks[2]), "r"(blocks[3])
               : "memory");
}

}  // namespace batten::impl::native::sm90
