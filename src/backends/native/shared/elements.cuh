// Elements of outputs and weights, packed in pairs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace batten::impl::native {

template <class Element>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
}

// Finds what is not finite among packed pairs.
template <class Element>
class FiniteCheck {
 public:
  // `chain`: additions of different ones of the four do not wait for each other.
  __device__ __forceinline__ void look_at(std::uint32_t pair, int chain) {
    auto& zeros = zeros_[chain % 4];
    zeros = __hfma2(reinterpret_cast<const Pair&>(pair), Pair{}, zeros);
  }

  __device__ __forceinline__ bool all_finite() const {
    const Pair sum = __hadd2(__hadd2(zeros_[0], zeros_[1]), __hadd2(zeros_[2], zeros_[3]));
    return __hbeq2(sum, Pair{});
  }

 private:
  using Pair = std::conditional_t<std::is_same_v<Element, __half>, __half2, __nv_bfloat162>;
  Pair zeros_[4] = {};  // NaN once something was not finite
};

}  // namespace batten::impl::native
