// Parts of tiles, put together.
#pragma once

#include <cstdint>

#include "backends/native/shared/division.hpp"
#include "core/device.hpp"
#include "problem/problem.hpp"

namespace batten::impl::native {

// What combine() reads and writes. Part p has kTileRows rows of fp32 outputs, [p, kTileRows,
// head_dim], and the logarithms of their sums, [p, kTileRows].
struct CombineCall {
  Division division;
  const float* parts = nullptr;
  const float* part_lse = nullptr;
  int head_dim = 0;
  DType dtype = DType::none;  // of the output: bf16, f16 or f32

  void* out = nullptr;  // [B, Sq, Hq, head_dim] in its layout
  Layout out_layout;
  float* lse = nullptr;  // [B, Sq, Hq], or null
  Layout lse_layout;

  bool overlaps = false;  // LaunchShape's
};

// Loads the kernel that combine() will launch for outputs of `dtype`: the first launch may be in a
// capture. Error{Device}.
void load_combine(const Division& division, DType dtype);

// Queues the call: each row's output is the mean of its parts' outputs, weighed by their sums, in
// the order of keys. Where launches overlap it follows the one before it at once, without waiting
// for its last CTA to be gone. Error{Device} when the launch fails.
void combine(const CombineCall& call, Stream stream);

}  // namespace batten::impl::native
