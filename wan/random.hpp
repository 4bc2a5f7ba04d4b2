// Random numbers by position: the same on every machine and device, in any order.
#pragma once

#include <cstdint>

namespace batten::wan {

// 64 well-mixed bits of (seed, index): SplitMix64's finaliser over a Weyl sequence.
constexpr std::uint64_t mixed(std::uint64_t seed, std::uint64_t index) noexcept {
  std::uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15ULL + index * 0xd1b54a32d192ed03ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// In (-1, 1).
constexpr float uniform(std::uint64_t seed, std::uint64_t index) noexcept {
  const auto bits = static_cast<std::uint32_t>(mixed(seed, index) >> 40);  // 24 of them
  return (static_cast<float>(bits) + 0.5F) * (2.0F / 16777216.0F) - 1.0F;
}

}  // namespace batten::wan
