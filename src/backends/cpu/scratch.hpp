// One thread's scratch: where each array of a block lies.
#pragma once

#include <algorithm>
#include <cstddef>

#include "backends/cpu/block.hpp"

namespace batten::impl::cpu {

// A panel is up to kMaxPanelRows query rows, side by side in vectors: everything that belongs to a
// row lies in its lane, so softmax needs no reduction across lanes.
inline constexpr std::int64_t kMaxPanelRows = 48;
inline constexpr std::int64_t kMaxLanes = 16;

// Keys from one column of V to the next: two more than are used, because columns that lie 4 KiB
// apart would all fall into one set of L1.
inline constexpr std::int64_t kColumnKeys = kKeyTile + 2;

struct Scratch {
  float* q;        // [panel][D][rows]: queries, transposed
  float* out;      // [panel][Dv][rows]: weighted sums of values, not yet normalised
  float* maximum;  // [rows]: largest score so far
  float* sum;      // [rows]: of exp(score - maximum)
  float* k;        // [key][D]
  float* v;        // [Dv / n][key][n], n the kernel's register rows
  float* scores;   // [key][panel rows], then the probabilities
  float* spare;    // a row that takes what lanes without a row would write

  static constexpr std::size_t kAlignment = 64;

  // Hands out the arrays of a block of `rows` rows from `base`, and gives the number of bytes they
  // need; a null base asks only.
  static std::size_t carve(Scratch& s, void* base, int head_dim, int head_dim_v,
                           std::int64_t rows) {
    const std::int64_t lanes = (rows + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
    std::size_t used = 0;
    const auto take = [&](float*& array, std::int64_t count) {
      if (base != nullptr) array = reinterpret_cast<float*>(static_cast<std::byte*>(base) + used);
      const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
      used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
    take(s.q, lanes * head_dim);
    take(s.out, lanes * head_dim_v);
    take(s.maximum, lanes);
    take(s.sum, lanes);
    take(s.k, kKeyTile * head_dim);
    take(s.v, kColumnKeys * head_dim_v);
    take(s.scores, kKeyTile * kMaxPanelRows);
    take(s.spare, kMaxHeadDim);
    return used;
  }
};

}  // namespace batten::impl::cpu
