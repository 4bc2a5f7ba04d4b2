// What the kernels of the family are compiled for, and which of them a device gets: by its shared
// memory alone. Nothing here needs CUDA.
#pragma once

#include <iterator>
#include <string>
#include <vector>

#include "backends/native/limits.hpp"

namespace batten::impl::native::sm80 {

// Warps that a multiprocessor has registers for: 255 a thread.
inline constexpr int kMostWarps = 8;

// Of each CTA: what the tiles are. And for each column of the head.
inline constexpr int kTaskBytes = 768;
inline constexpr int kColumnBytes = 2;

struct Configuration {
  int head_dim = 0;
  int block_keys = 0;  // of one step
  int warps = 0;       // of a CTA
  int sides = 1;       // warps that share rows: each has a part of the keys and of the columns

  // Of a thread, for outputs and scores.
  constexpr int registers() const { return kTileRows * (head_dim + block_keys) / (32 * warps); }

  constexpr int shared_bytes() const {
    const int tile = (kTileRows + 2 * block_keys) * head_dim * 2;
    // Between warps that share rows: all weights, and two numbers of each row.
    const int between = sides > 1 ? kTileRows * (block_keys * 2 + sides * 2 * 4) : 0;
    return tile + between + kTaskBytes + kColumnBytes * head_dim;
  }

  // On a multiprocessor that gives a CTA `limit` bytes: it has 1 KB more than that, and so does
  // each CTA take.
  constexpr int ctas(int limit) const {
    constexpr int kReserved = 1024;
    if (warps == 0 || shared_bytes() > limit) return 0;
    const int fit = (limit + kReserved) / (shared_bytes() + kReserved);
    return fit < kMostWarps / warps ? fit : kMostWarps / warps;
  }

  // "128x64", and for `batten info` with warps and CTAs.
  std::string tile() const;
  std::string str(int limit) const;

  friend bool operator==(const Configuration&, const Configuration&) = default;
};

// All that are compiled, for both dtypes each. Of a head dim the best comes first where memory is
// no question.
inline constexpr Configuration kConfigurations[] = {
    {64, 96, 4},      // 40 KB: two CTAs everywhere, as the next two
    {80, 64, 4},      // 40 KB
    {96, 64, 4},      // 48 KB
    {128, 64, 4},     // 64 KB: two CTAs from 163 KB on
    {128, 32, 4},     // 48 KB: for 99 KB
    {192, 64, 8},     // 96 KB: one CTA everywhere
    {256, 64, 8, 2},  // 146 KB: from 163 KB on
    {256, 32, 8},     // 96 KB: for 99 KB
};
inline constexpr int kNumConfigurations = std::size(kConfigurations);

// Head dims that there are kernels for.
std::vector<int> head_dims();

// A head dim's first that keeps all warps busy that registers allow; where none does, the first of
// those with the most. None fits or is compiled: one with no warps.
Configuration choose(int head_dim, int limit);

}  // namespace batten::impl::native::sm80
