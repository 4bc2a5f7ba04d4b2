#include "half.hpp"

#include <cmath>
#include <cstring>

namespace batten::conformance {

std::uint16_t to_f16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x477ff000u)  // from 65520 on the nearest is infinity
    return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Subnormal: the last bit of a float near 0.5 is worth 2^-24, the smallest f16, so that this
    // addition rounds for us.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

float from_f16(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

std::uint32_t encode(DType dtype, float value) noexcept {
  switch (dtype) {
    case DType::f16:
      return to_f16(value);
    case DType::bf16:
      return to_bf16(value);
    default:
      return std::bit_cast<std::uint32_t>(value);
  }
}

float decode(DType dtype, std::uint32_t bits) noexcept {
  switch (dtype) {
    case DType::f16:
      return from_f16(static_cast<std::uint16_t>(bits));
    case DType::bf16:
      return from_bf16(static_cast<std::uint16_t>(bits));
    default:
      return std::bit_cast<float>(bits);
  }
}

void encode(DType dtype, std::span<const float> values, std::byte* bytes) noexcept {
  const std::size_t size = size_of(dtype);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = encode(dtype, values[i]);
    std::memcpy(bytes + i * size, &bits, size);  // little-endian, as every CUDA host is
  }
}

void decode(DType dtype, const std::byte* bytes, std::span<float> values) noexcept {
  const std::size_t size = size_of(dtype);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes + i * size, size);
    values[i] = decode(dtype, bits);
  }
}

}  // namespace batten::conformance
