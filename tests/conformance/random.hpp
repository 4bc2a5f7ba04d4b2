// Random numbers that are the same on every machine and fast enough for tensors of a gigabyte.
#pragma once

#include <cstdint>
#include <string_view>

namespace batten::conformance {

// FNV-1a: seeds from names.
constexpr std::uint64_t seed_of(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text)
    hash = (hash ^ static_cast<unsigned char>(c)) * std::uint64_t{0x100000001b3};
  return hash;
}

// splitmix64
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Below `n`, which is at least 1.
  std::int64_t below(std::int64_t n) noexcept {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n));
  }

  // Mean 0, deviation 1: the sum of four uniform 16-bit numbers, so within 3.5 of 0.
  float normal() noexcept {
    const std::uint64_t b = bits();
    const auto sum = static_cast<float>((b & 0xffffu) + ((b >> 16) & 0xffffu) +
                                        ((b >> 32) & 0xffffu) + (b >> 48));
    return (sum - 131070.0f) * (1.0f / 37837.0f);
  }

 private:
  std::uint64_t state_;
};

}  // namespace batten::conformance
