// Elements of the inputs to fp32 and back. Included once per SIMD target.
#if defined(BATTEN_CPU_CONVERT_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef BATTEN_CPU_CONVERT_INL_HPP
#undef BATTEN_CPU_CONVERT_INL_HPP
#else
#define BATTEN_CPU_CONVERT_INL_HPP
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "backends/cpu/math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace batten::impl::cpu::HWY_NAMESPACE {
namespace {

// load_floats(d, p): Lanes(d) elements from p as fp32. store_floats(d, v, p): back, rounded to
// nearest, ties to even.

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> v, float* p) {
  hn::StoreU(v, d, p);
}

// Two bf16 side by side, moved but never computed with.
struct Pair {
  std::uint32_t bits;
};
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const Pair* p) {
  return hn::LoadU(d, reinterpret_cast<const float*>(p));
}

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const hwy::bfloat16_t* p) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::bfloat16_t, D>(), p));
}
// Highway's own conversion truncates.
template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> v, hwy::bfloat16_t* p) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<hwy::bfloat16_t, D> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu)));
  // The carry must not turn a NaN into an infinity.
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000u));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto result = hn::BitCast(d, hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(d16, result), d16, p);
}

#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
// Where the CPU has no conversion, Highway's emulation has no infinities and NaNs.
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const hwy::float16_t* p) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto half = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)));
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d32, 0x8000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(d32, 0x7fffu)));
  // The exponents' bias differs by 112; a product is right for subnormal halves too.
  const auto scaled = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));
  const auto special = hn::Or(magnitude, hn::Set(d32, 0x7f800000u));
  const auto is_special = hn::Ge(hn::BitCast(d, magnitude), hn::Set(d, 0x1p-96f));
  const auto value = hn::IfThenElse(is_special, hn::BitCast(d, special), scaled);
  return hn::Or(value, hn::BitCast(d, sign));
}
template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> v, hwy::float16_t* p) {
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto magnitude = hn::Abs(v);
  const auto bits = hn::BitCast(d32, magnitude);
  const auto sign = hn::ShiftRight<16>(hn::And(hn::BitCast(d32, v), hn::Set(d32, 0x80000000u)));
  // Normal: move the exponent by 112 and round to even. Subnormal: adding 0.5 rounds in place.
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(d32, 1u));
  const auto normal = hn::ShiftRight<13>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0xc8000fffu))));
  const auto half = hn::Set(d, 0.5f);
  const auto subnormal =
      hn::Sub(hn::BitCast(d32, hn::Add(magnitude, half)), hn::BitCast(d32, half));
  const auto is_subnormal = hn::RebindMask(d32, hn::Lt(magnitude, hn::Set(d, 0x1p-14f)));
  const auto is_infinite = hn::RebindMask(d32, hn::Ge(magnitude, hn::Set(d, 0x1p16f)));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  auto result = hn::IfThenElse(is_subnormal, subnormal, normal);
  result = hn::IfThenElse(is_infinite, hn::Set(d32, 0x7c00u), result);
  result = hn::IfThenElse(is_nan, hn::Set(d32, 0x7e00u), result);
  result = hn::Or(result, sign);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, result)), d16,
             reinterpret_cast<std::uint16_t*>(p));
}
#else
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const hwy::float16_t* p) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), p));
}
template <class D>
HWY_INLINE void store_floats(D, hn::Vec<D> v, hwy::float16_t* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, p);
}
#endif

}  // namespace
}  // namespace batten::impl::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
