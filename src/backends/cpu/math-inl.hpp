// How a product's operands are stored and multiplied. Included once per SIMD target.
#if defined(BATTEN_CPU_MATH_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef BATTEN_CPU_MATH_INL_HPP
#undef BATTEN_CPU_MATH_INL_HPP
#else
#define BATTEN_CPU_MATH_INL_HPP
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "backends/cpu/block.hpp"
#include "backends/cpu/scratch.hpp"

HWY_BEFORE_NAMESPACE();
namespace batten::impl::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(Floats()));
static_assert(kLanes >= 4 && kLanes <= kMaxLanes && kMaxBlockRows % kLanes == 0);

// fp32 operands, whatever the inputs were.
struct Fp32 {
  static constexpr std::int64_t kPack = 1;  // values of a 32-bit element, along the sum

  static HWY_INLINE Vector multiply_add(Vector a, Vector b, Vector sum) {
    return hn::MulAdd(a, b, sum);
  }
};

#undef BATTEN_CPU_HAS_BF16_DOT
#define BATTEN_CPU_HAS_BF16_DOT (HWY_TARGET == HWY_AVX3)
#if BATTEN_CPU_HAS_BF16_DOT

// Elements are pairs of bf16 that lie side by side in the sum's direction, and are moved about as
// if they were fp32. sum += a.low * b.low + a.high * b.high.
struct Bf16Dot {
  static constexpr std::int64_t kPack = 2;

  static HWY_INLINE Vector multiply_add(Vector a, Vector b, Vector sum) {
    // As text, because the intrinsic asks for a target that this pass of Highway does not enable.
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }

  // Probabilities of an even and the next odd key, rounded to bf16; halfway cases go up.
  static HWY_INLINE Vector pair(Vector even, Vector odd) {
    const hn::RebindToUnsigned<Floats> du;
    const auto half = hn::Set(du, 0x8000u);
    const auto low = hn::ShiftRight<16>(hn::Add(hn::BitCast(du, even), half));
    const auto high = hn::And(hn::Add(hn::BitCast(du, odd), half), hn::Set(du, 0xffff0000u));
    return hn::BitCast(Floats(), hn::Or(low, high));
  }
};
#endif

}  // namespace
}  // namespace batten::impl::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
