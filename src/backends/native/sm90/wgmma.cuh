// Warpgroup matrix products: D[64 x N] (+)= A[64 x 16] B[16 x N], fp32 accumulators in registers,
// on operands in shared memory with the 128-byte swizzle that TMA writes. PTX ISA, "Asynchronous
// Warpgroup Level Matrix Instructions".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backends/native/sm90/ptx.cuh"

namespace batten::impl::native::sm90 {

// Operands in shared memory are panels of 64 columns: rows of 128 bytes, swizzled in groups of
// eight rows. "Matrix descriptor format": in the low word the address and the leading offset, in
// the high word the stride offset, all in units of 16 bytes, and the swizzle (1 in bits 62-63: 128
// bytes).
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr std::uint32_t kHighWord = (8 * kPanelRowBytes >> 4) | 1u << 30;

// A descriptor's low word; steps within an operand are added to it.
using Operand = std::uint32_t;

// Sixteen columns further within a panel, and sixteen rows further.
inline constexpr Operand kColumnStep = 32 >> 4;
inline constexpr Operand kRowStep = 16 * kPanelRowBytes >> 4;

// An operand whose rows run along K (queries and keys in Q K^T).
__device__ __forceinline__ Operand operand_along_k(const void* panel) {
  return (shared_address(panel) & 0x3FFFFu) >> 4 | 1u << 16;
}

// An operand whose rows run along N (values in P V), its panels `panel_bytes` apart.
template <int panel_bytes>
__device__ __forceinline__ Operand operand_along_n(const void* panel) {
  return (shared_address(panel) & 0x3FFFFu) >> 4 | Operand{panel_bytes >> 4} << 16;
}

__device__ __forceinline__ std::uint64_t descriptor(Operand low) {
  return std::uint64_t{kHighWord} << 32 | low;
}

// "wgmma.fence": orders register accesses before the products that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// "wgmma.commit_group"
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// "wgmma.wait_group": all but the last `pending` groups are complete.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Registers that a product wrote may be read after this and a wait: keeps the compiler from moving
// the reads before the wait.
template <int count>
__device__ __forceinline__ void wgmma_arrived(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The instruction for each width. Operands of inline assembly cannot be an array, hence the lists.
template <class Element, int n>
struct Wgmma;

#define BATTEN_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define BATTEN_R1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define BATTEN_R2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define BATTEN_R3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define BATTEN_R4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define BATTEN_R5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define BATTEN_R6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define BATTEN_R7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define BATTEN_R8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define BATTEN_R9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define BATTEN_R10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define BATTEN_R11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define BATTEN_R12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define BATTEN_R13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define BATTEN_R14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define BATTEN_R15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define BATTEN_LIST_8 BATTEN_R0
#define BATTEN_LIST_16 BATTEN_LIST_8 ", " BATTEN_R1
#define BATTEN_LIST_24 BATTEN_LIST_16 ", " BATTEN_R2
#define BATTEN_LIST_32 BATTEN_LIST_24 ", " BATTEN_R3
#define BATTEN_LIST_40 BATTEN_LIST_32 ", " BATTEN_R4
#define BATTEN_LIST_48 BATTEN_LIST_40 ", " BATTEN_R5
#define BATTEN_LIST_56 BATTEN_LIST_48 ", " BATTEN_R6
#define BATTEN_LIST_64 BATTEN_LIST_56 ", " BATTEN_R7
#define BATTEN_LIST_72 BATTEN_LIST_64 ", " BATTEN_R8
#define BATTEN_LIST_80 BATTEN_LIST_72 ", " BATTEN_R9
#define BATTEN_LIST_88 BATTEN_LIST_80 ", " BATTEN_R10
#define BATTEN_LIST_96 BATTEN_LIST_88 ", " BATTEN_R11
#define BATTEN_LIST_104 BATTEN_LIST_96 ", " BATTEN_R12
#define BATTEN_LIST_112 BATTEN_LIST_104 ", " BATTEN_R13
#define BATTEN_LIST_120 BATTEN_LIST_112 ", " BATTEN_R14
#define BATTEN_LIST_128 BATTEN_LIST_120 ", " BATTEN_R15
#define BATTEN_OUT(i)                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define BATTEN_OUTS_8 BATTEN_OUT(0)
#define BATTEN_OUTS_16 BATTEN_OUTS_8, BATTEN_OUT(8)
#define BATTEN_OUTS_24 BATTEN_OUTS_16, BATTEN_OUT(16)
#define BATTEN_OUTS_32 BATTEN_OUTS_24, BATTEN_OUT(24)
#define BATTEN_OUTS_40 BATTEN_OUTS_32, BATTEN_OUT(32)
#define BATTEN_OUTS_48 BATTEN_OUTS_40, BATTEN_OUT(40)
#define BATTEN_OUTS_56 BATTEN_OUTS_48, BATTEN_OUT(48)
#define BATTEN_OUTS_64 BATTEN_OUTS_56, BATTEN_OUT(56)
#define BATTEN_OUTS_72 BATTEN_OUTS_64, BATTEN_OUT(64)
#define BATTEN_OUTS_80 BATTEN_OUTS_72, BATTEN_OUT(72)
#define BATTEN_OUTS_88 BATTEN_OUTS_80, BATTEN_OUT(80)
#define BATTEN_OUTS_96 BATTEN_OUTS_88, BATTEN_OUT(88)
#define BATTEN_OUTS_104 BATTEN_OUTS_96, BATTEN_OUT(96)
#define BATTEN_OUTS_112 BATTEN_OUTS_104, BATTEN_OUT(104)
#define BATTEN_OUTS_120 BATTEN_OUTS_112, BATTEN_OUT(112)
#define BATTEN_OUTS_128 BATTEN_OUTS_120, BATTEN_OUT(120)
// shared_shared: A and B in shared memory, both along K.
// registers_along_k, registers_along_n: A in registers, B in shared memory along K, or along N.
// `accumulate` false: D = A B.
#define BATTEN_WGMMA(n, registers, a0, a1, a2, a3, a4, a5)                                      \
  template <class Element>                                                                      \
  struct Wgmma<Element, n> {                                                                    \
    static __device__ __forceinline__ void shared_shared(float (&d)[registers], Operand a,      \
                                                         Operand b, bool accumulate) {          \
      if constexpr (std::is_same_v<Element, __nv_bfloat16>) {                                   \
        BATTEN_WGMMA_SS("bf16", n, registers, a0, a1, a2);                                      \
      } else {                                                                                  \
        BATTEN_WGMMA_SS("f16", n, registers, a0, a1, a2);                                       \
      }                                                                                         \
    }                                                                                           \
    static __device__ __forceinline__ void registers_along_k(float (&d)[registers],             \
                                                             const std::uint32_t* a, Operand b, \
                                                             bool accumulate) {                 \
      if constexpr (std::is_same_v<Element, __nv_bfloat16>) {                                   \
        BATTEN_WGMMA_RS("bf16", "0", n, registers, a0, a1, a2, a3, a4, a5);                     \
      } else {                                                                                  \
        BATTEN_WGMMA_RS("f16", "0", n, registers, a0, a1, a2, a3, a4, a5);                      \
      }                                                                                         \
    }                                                                                           \
    static __device__ __forceinline__ void registers_along_n(float (&d)[registers],             \
                                                             const std::uint32_t* a, Operand b, \
                                                             bool accumulate) {                 \
      if constexpr (std::is_same_v<Element, __nv_bfloat16>) {                                   \
        BATTEN_WGMMA_RS("bf16", "1", n, registers, a0, a1, a2, a3, a4, a5);                     \
      } else {                                                                                  \
        BATTEN_WGMMA_RS("f16", "1", n, registers, a0, a1, a2, a3, a4, a5);                      \
      }                                                                                         \
    }                                                                                           \
  }
#define BATTEN_WGMMA_SS(type, n, registers, a0, a1, a2)                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #a2                                \
               ", 0;\n"                                                                \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type         \
               " {" BATTEN_LIST_##registers "}, %" #a0 ", %" #a1 ", p, 1, 1, 0, 0;\n}" \
               : BATTEN_OUTS_##registers                                               \
               : "l"(descriptor(a)), "l"(descriptor(b)), "r"(static_cast<int>(accumulate)))
#define BATTEN_WGMMA_RS(type, along_n, n, registers, a0, a1, a2, a3, a4, a5)                     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #a5                                          \
               ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type                   \
               " {" BATTEN_LIST_##registers "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #a4 \
                                            ", p, 1, 1, " along_n ";\n}"                         \
               : BATTEN_OUTS_##registers                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(b)),                 \
                 "r"(static_cast<int>(accumulate)))

// Width, its registers, and the positions of the operands that follow them.
BATTEN_WGMMA(64, 32, 32, 33, 34, 35, 36, 37);
BATTEN_WGMMA(80, 40, 40, 41, 42, 43, 44, 45);
BATTEN_WGMMA(96, 48, 48, 49, 50, 51, 52, 53);
BATTEN_WGMMA(128, 64, 64, 65, 66, 67, 68, 69);
BATTEN_WGMMA(144, 72, 72, 73, 74, 75, 76, 77);
BATTEN_WGMMA(176, 88, 88, 89, 90, 91, 92, 93);
BATTEN_WGMMA(256, 128, 128, 129, 130, 131, 132, 133);

#undef BATTEN_WGMMA
#undef BATTEN_WGMMA_SS
#undef BATTEN_WGMMA_RS

}  // namespace batten::impl::native::sm90
