// Division by numbers that a launch fixes. Host and device.
#pragma once

#include <cstdint>

namespace batten::impl::native {

// Division by a number that the launch fixes: a multiplication. For dividends below 2^31.
struct Divisor {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 0;
  std::uint32_t shift = 0;

  Divisor() = default;
  explicit Divisor(std::uint32_t d) : divisor(d) {
    if (d <= 1) return;
    while ((std::uint64_t{1} << (shift + 1)) < d) ++shift;
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << (32 + shift)) + d - 1) / d);
  }

  constexpr int quotient(int n) const {
    if (divisor == 1) return n;
    return static_cast<int>((std::uint64_t{static_cast<std::uint32_t>(n)} * multiplier >> 32) >>
                            shift);
  }
  constexpr int value() const { return static_cast<int>(divisor); }
};

}  // namespace batten::impl::native
