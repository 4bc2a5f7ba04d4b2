// Combining hashes of small value types.
#pragma once

#include <cstddef>
#include <functional>

namespace batten::impl {

inline void hash_combine(std::size_t& seed, std::size_t value) noexcept {
  // The 64-bit golden ratio spreads consecutive integers, which is what our keys hold.
  seed ^= value + 0x9e3779b97f4a7c15ull + (seed << 12) + (seed >> 4);
}

template <class... T>
std::size_t hash_of(const T&... values) noexcept {
  std::size_t seed = 0;
  (hash_combine(seed, std::hash<T>{}(values)), ...);
  return seed;
}

}  // namespace batten::impl
