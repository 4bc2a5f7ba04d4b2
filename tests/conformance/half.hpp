// Host conversion between float32 and the 16-bit formats, rounding to nearest even. Written apart
// from the library's own conversions, so that an error there cannot hide here.
#pragma once

#include <batten/types.hpp>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace batten::conformance {

std::uint16_t to_f16(float value) noexcept;
float from_f16(std::uint16_t bits) noexcept;

inline std::uint16_t to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // A NaN whose payload lies in the lower half would round to infinity: keep it quiet instead.
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float from_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// The bits of `value` in `dtype`, in the low bytes.
std::uint32_t encode(DType dtype, float value) noexcept;
float decode(DType dtype, std::uint32_t bits) noexcept;

// Whole arrays; `bytes` holds as many elements of `dtype` as `values` has.
void encode(DType dtype, std::span<const float> values, std::byte* bytes) noexcept;
void decode(DType dtype, const std::byte* bytes, std::span<float> values) noexcept;

}  // namespace batten::conformance
