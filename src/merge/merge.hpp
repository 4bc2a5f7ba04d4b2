// Combining two partial attention results over different keys.
#pragma once

#include <batten/batten.h>

#include <cstdint>

#include "core/device.hpp"
#include "problem/problem.hpp"

namespace batten::impl {

// (out, lse) becomes the attention over both key sets, of which (out, lse) and (out2, lse2) are the
// partial results; lse is the natural logarithm of a row's sum of exponentials. Row by row, with
// a = lse, b = lse2:
//   both -inf           out = 0
//   b = -inf            nothing happens: out keeps its bits
//   a = -inf            out = out2 (its bits, where the types agree), lse = b
//   else                the sum weighted by exp(a - max) and exp(b - max), in float
// NaN in a, b or an output propagates; +inf in a or b gives lse = +inf and an output of NaN.
//
// Checked by the caller: the types, the shapes, that nothing overlaps, and that each pointer is
// where the function reads it. The last dimension of out and out2 is contiguous.
struct MergeCall {
  void* out = nullptr;
  float* lse = nullptr;
  const void* out2 = nullptr;
  const float* lse2 = nullptr;
  DType out_dtype = DType::none;   // f32, f16 or bf16
  DType out2_dtype = DType::none;  // likewise
  std::int64_t batch = 0;          // packed: 1
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  Layout out_layout, lse_layout, out2_layout, lse2_layout;  // elements
};

void merge_cpu(const MergeCall& call);

// The public merge: checks the views (InvalidArgument naming the tensor) and runs on their device.
// out, out2 [B, S, H, D] or [T, H, D]; lse, lse2 the same without D, fp32.
void merge(const batten_tensor& out, const batten_tensor& lse, const batten_tensor& out2,
           const batten_tensor& lse2, Stream stream);

#if BATTEN_WITH_CUDA
// Queued on `stream` of the current device.
void merge_cuda(const MergeCall& call, Stream stream);
#endif

}  // namespace batten::impl
