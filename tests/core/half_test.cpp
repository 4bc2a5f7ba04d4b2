// Every 16-bit value, and every rounding boundary, against arithmetic in double.
#include "core/half.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace batten::impl {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

static_assert(float_to_half(1.0f) == 0x3c00);
static_assert(half_to_float(0x3c00) == 1.0f);
static_assert(float_to_bfloat16(1.0f) == 0x3f80);
static_assert(bfloat16_to_float(0x3f80) == 1.0f);

double half_value(int bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(0x400 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Half, EveryFiniteValueKeepsItsMeaningAndItsBits) {
  for (int bits = 0; bits <= 0xffff; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(value, half_value(bits)) << std::hex << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << std::hex << bits;
    ASSERT_EQ(float_to_half(value), bits) << std::hex << bits;
  }
}

TEST(Half, RoundsToNearestAndTiesToEven) {
  for (int bits = 0; bits < 0x7bff; ++bits) {  // and its successor, both finite
    const double low = half_value(bits);
    const double high = half_value(bits + 1);
    const auto tie = static_cast<float>((low + high) / 2);  // exact: one more bit of mantissa
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(float_to_half(tie), even) << std::hex << bits;
    ASSERT_EQ(float_to_half(std::nextafter(tie, 0.0f)), bits) << std::hex << bits;
    ASSERT_EQ(float_to_half(std::nextafter(tie, kInfinity)), bits + 1) << std::hex << bits;
    ASSERT_EQ(float_to_half(-tie), even | 0x8000) << std::hex << bits;
  }
}

TEST(Half, OverflowsToInfinityFromTheTieOn) {
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-65520.0f), 0xfc00);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::max()), 0x7c00);
}

TEST(Half, TinyValuesBecomeSignedZeros) {
  EXPECT_EQ(float_to_half(0x1p-25f), 0x0000);  // tie between 0 and the smallest
  EXPECT_EQ(float_to_half(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(float_to_half(-std::numeric_limits<float>::denorm_min()), 0x8000);
}

TEST(Half, InfinitiesAndNanSurvive) {
  EXPECT_EQ(half_to_float(0x7c00), kInfinity);
  EXPECT_EQ(half_to_float(0xfc00), -kInfinity);
  EXPECT_EQ(float_to_half(kInfinity), 0x7c00);
  EXPECT_EQ(float_to_half(-kInfinity), 0xfc00);
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xffffffffu, 0x7fffe000u}) {
    EXPECT_TRUE(std::isnan(half_to_float(float_to_half(std::bit_cast<float>(bits)))));
  }
}

TEST(Bfloat16, EveryValueKeepsItsBits) {
  for (int bits = 0; bits <= 0xffff; ++bits) {
    const float value = bfloat16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(value))));
      continue;
    }
    ASSERT_EQ(float_to_bfloat16(value), bits) << std::hex << bits;
  }
}

TEST(Bfloat16, RoundsToNearestAndTiesToEven) {
  std::mt19937 random(1);
  for (int n = 0; n < 200000; ++n) {
    const auto upper = static_cast<std::uint32_t>(random() % 0x7f7f);
    const auto tie = std::bit_cast<float>(upper << 16 | 0x8000u);
    const std::uint32_t even = upper + upper % 2;
    ASSERT_EQ(float_to_bfloat16(tie), even) << std::hex << upper;
    ASSERT_EQ(float_to_bfloat16(std::bit_cast<float>(upper << 16 | 0x7fffu)), upper);
    ASSERT_EQ(float_to_bfloat16(std::bit_cast<float>(upper << 16 | 0x8001u)), upper + 1);
  }
}

TEST(Bfloat16, ANanWhosePayloadIsCutStaysOne) {
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::bit_cast<float>(0xffffffffu)))));
}

}  // namespace
}  // namespace batten::impl
