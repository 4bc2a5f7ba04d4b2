// Writing "sees no key" into rows of the output: 0, and -inf in the lse.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cudnn/sample.hpp"

namespace batten::impl::cudnn {

inline constexpr int kThreads = 128;

// Blocks that share the rows of one sample; `part` of them does every parts-th row.
constexpr int parts_of(std::int64_t rows) {
  constexpr std::int64_t kRowsPerBlock = 64;
  constexpr std::int64_t kMostParts = 32;
  const std::int64_t parts = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  return static_cast<int>(parts < 1 ? 1 : (parts > kMostParts ? kMostParts : parts));
}

// Rows [begin, end) of sample b. Heads are multiples of 16 bytes long, and so are all strides.
__device__ inline void write_unseen(const Batch& batch, std::int64_t b, std::int64_t begin,
                                    std::int64_t end, int part, int parts, void* out, float* lse) {
  const int vectors = batch.row_bytes / 16;
  const int element_bytes = batch.row_bytes / batch.head_dim_v;
  for (std::int64_t row = begin + part; row < end; row += parts) {
    char* const out_row = static_cast<char*>(out) + offset_of(batch.out, b, row) * element_bytes;
    for (int i = static_cast<int>(threadIdx.x); i < batch.num_heads * vectors; i += kThreads) {
      const int head = i / vectors;
      const int vector = i % vectors;
      char* const at = out_row + head * batch.out.head * element_bytes + vector * 16;
      *reinterpret_cast<int4*>(at) = int4{0, 0, 0, 0};
    }
    if (lse == nullptr) continue;
    float* const lse_row = lse + offset_of(batch.lse, b, row);
    for (int head = static_cast<int>(threadIdx.x); head < batch.num_heads; head += kThreads) {
      lse_row[head * batch.lse.head] = -INFINITY;
    }
  }
}

}  // namespace batten::impl::cudnn
