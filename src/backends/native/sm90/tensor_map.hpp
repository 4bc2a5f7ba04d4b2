// Tensor maps: how the copy engine is told of a tensor. Encoded by the driver on the host, in a
// fraction of a microsecond each.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "problem/problem.hpp"

namespace batten::impl::native::sm90 {

struct MapShape {
  DType dtype = DType::none;
  std::int64_t samples = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
};

// Looks the driver's encoder up; Error{Device} when it has none. Cheap after the first time.
void load_encoder();

// A map of `data` in boxes of `columns` of one head by `box_rows` rows, with the 128-byte swizzle.
// Reads past the tensor give 0, writes there are left out. Dimensions of stride 0 get one entry:
// the kernel does not step along them (Steps).
CUtensorMap encode(const void* data, const MapShape& shape, const Layout& layout, int columns,
                   int box_rows);

}  // namespace batten::impl::native::sm90
