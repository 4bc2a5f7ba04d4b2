// Elements of tensors as doubles.
#pragma once

#include <algorithm>
#include <batten/types.hpp>
#include <cmath>
#include <cstdint>

#include "core/half.hpp"

namespace batten::impl {

// Element types as they lie in memory.
struct Half {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};

inline double to_double(float x) { return x; }

inline double to_double(Half x) { return half_to_float(x.bits); }

inline double to_double(Bfloat16 x) { return bfloat16_to_float(x.bits); }

// The 16-bit floating-point number nearest to x (ties to even) with `kMantissa` stored mantissa
// bits. Rounded once, from double: going through float could round a tie the wrong way.
template <int kMantissa>
std::uint16_t round_to_16_bits(double x) {
  constexpr int kExponentBits = 15 - kMantissa;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr int kInfinity = ((1 << kExponentBits) - 1) << kMantissa;
  const int sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return static_cast<std::uint16_t>(sign | kInfinity | (1 << (kMantissa - 1)));
  const double magnitude = std::fabs(x);
  if (magnitude == 0 || std::isinf(x)) {
    return static_cast<std::uint16_t>(sign | (magnitude == 0 ? 0 : kInfinity));
  }
  // magnitude = units * 2^(exponent - kMantissa), units in [2^kMantissa, 2^(kMantissa + 1)) unless
  // the result is subnormal. nearbyint rounds to even; a carry runs into the exponent by itself.
  const int exponent = std::max(std::ilogb(magnitude), 1 - kBias);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, kMantissa - exponent)));
  const int bits = ((exponent + kBias - 1) << kMantissa) + units;
  return static_cast<std::uint16_t>(sign |
                                    (exponent > kBias ? kInfinity : std::min(bits, kInfinity)));
}

inline void store(float& out, double x) { out = static_cast<float>(x); }
inline void store(Half& out, double x) { out.bits = round_to_16_bits<10>(x); }
inline void store(Bfloat16& out, double x) { out.bits = round_to_16_bits<7>(x); }

// Calls function(T{}) with the element type of `dtype`.
template <class Function>
decltype(auto) with_element(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f16:
      return function(Half{});
    case DType::bf16:
      return function(Bfloat16{});
    default:
      return function(float{});
  }
}

}  // namespace batten::impl
