// Facts about strided [B, S, H, D] views in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem/problem.hpp"

namespace batten::impl {

// A view as bytes in memory. Packed tensors have batch == 1.
struct Extent {
  std::uintptr_t data = 0;
  std::int64_t batch = 0, rows = 0, heads = 0, width = 0;  // elements; width is D, 1 for lse
  Layout layout;
  std::size_t element_size = 0;

  bool empty() const noexcept { return batch == 0 || rows == 0 || heads == 0 || width == 0; }
};

// Whether two elements of the view may be the same memory. Exact for nested strides; a view whose
// dimensions interleave is reported as overlapping.
bool overlaps_itself(const Extent& view) noexcept;

// Whether two views may share memory. Slices of one buffer, as of a fused row
// ([B, S, 3, H, D]), are told apart.
bool overlap(const Extent& a, const Extent& b) noexcept;

}  // namespace batten::impl
