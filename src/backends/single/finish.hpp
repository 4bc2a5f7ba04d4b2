// What is left to do around FlashInfer's kernels: rows that they do not write, the base of the
// log-sum-exp, and outputs in layouts that they do not know.
#pragma once

#include <cstdint>

#include "core/device.hpp"
#include "problem/problem.hpp"

namespace batten::impl::single {

// `rows` rows of one sample, all heads.
struct Segment {
  std::int64_t out = 0;      // elements from out to the first row
  std::int64_t lse = 0;      // elements from lse to the first row
  std::int64_t scratch = 0;  // rows from the scratch tensors' beginning
  std::int64_t rows = 0;
  bool clear = false;  // write 0 and -inf; else bring over what the kernels computed
};

// The tensors of a call, and its segments as they come up: passed to the device in the 4 KiB of
// kernel parameters, for that needs no copy and works in a CUDA graph.
struct Finish {
  static constexpr int kMost = 96;

  void* out = nullptr;
  float* lse = nullptr;  // or null
  // Contiguous, in the order of rows; null: the kernel wrote to the call's tensor itself.
  const void* scratch_out = nullptr;
  const float* scratch_lse = nullptr;
  Layout out_layout, lse_layout;
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 0;  // a multiple of 8; elements have 2 bytes

  std::int32_t count = 0;
  Segment segments[kMost] = {};
};

// Queues the segments' work on the current device. Nothing without segments.
void run_finish(const Finish& finish, Stream stream);

}  // namespace batten::impl::single
