// One warp a row: it computes the weights once per lane and streams over the head dimension.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/cuda_runtime.hpp"
#include "merge/merge.hpp"
#include "merge/weights.hpp"

namespace batten::impl {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// N neighbouring elements, loaded and stored as one.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];
};

__device__ float to_float(float x) { return x; }
__device__ float to_float(__half x) { return __half2float(x); }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ T from_float(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

struct Position {
  std::int64_t b, i, h;
};

// Division by 64-bit numbers costs as much as the rest of a row; few tensors have that many rows.
template <class Index>
__device__ Position position_of(Index row, const MergeCall& call) {
  const auto heads = static_cast<Index>(call.heads);
  const auto rows = static_cast<Index>(call.rows);
  const Index token = row / heads;
  return {static_cast<std::int64_t>(token / rows), static_cast<std::int64_t>(token % rows),
          static_cast<std::int64_t>(row % heads)};
}

__device__ std::int64_t offset(const Layout& layout, const Position& at) {
  return at.b * layout.batch + at.i * layout.row + at.h * layout.head;
}

template <class Out, class In, int N>
__global__ void __launch_bounds__(kThreads)
    merge_rows(const __grid_constant__ MergeCall call, std::int64_t count) {
  using OutVector = Vector<Out, N>;
  using InVector = Vector<In, N>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  const std::int64_t vectors = call.head_dim / N;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
       row < count; row += step) {
    const Position at = count <= std::numeric_limits<std::uint32_t>::max()
                            ? position_of(static_cast<std::uint32_t>(row), call)
                            : position_of(static_cast<std::uint64_t>(row), call);
    float* lse = call.lse + offset(call.lse_layout, at);
    const MergeWeights weights = merge_weights(*lse, call.lse2[offset(call.lse2_layout, at)]);
    __syncwarp();  // every lane has read lse
    if (lane == 0) *lse = weights.lse;
    if (weights.action == RowMerge::keep) continue;

    auto* out =
        reinterpret_cast<OutVector*>(static_cast<Out*>(call.out) + offset(call.out_layout, at));
    const auto* out2 = reinterpret_cast<const InVector*>(static_cast<const In*>(call.out2) +
                                                         offset(call.out2_layout, at));
    for (std::int64_t n = lane; n < vectors; n += 32) {
      OutVector result;
      if (weights.action == RowMerge::clear) {
        for (int e = 0; e < N; ++e) result.values[e] = from_float<Out>(0);
      } else {
        const InVector second = out2[n];
        if (weights.action == RowMerge::take_second) {
          for (int e = 0; e < N; ++e) {
            if constexpr (std::is_same_v<Out, In>) {
              result.values[e] = second.values[e];
            } else {
              result.values[e] = from_float<Out>(to_float(second.values[e]));
            }
          }
        } else {
          const OutVector first = out[n];
          for (int e = 0; e < N; ++e) {
            result.values[e] = from_float<Out>(weights.first * to_float(first.values[e]) +
                                               weights.second * to_float(second.values[e]));
          }
        }
      }
      out[n] = result;
    }
  }
}

bool is_multiple(const void* data, const Layout& layout, std::size_t element, std::int64_t n) {
  return reinterpret_cast<std::uintptr_t>(data) % (element * static_cast<std::size_t>(n)) == 0 &&
         layout.batch % n == 0 && layout.row % n == 0 && layout.head % n == 0;
}

template <class Out, class In>
void launch(const MergeCall& call, Stream stream) {
  const std::int64_t count = call.batch * call.rows * call.heads;
  // Enough blocks to fill any device; each takes further rows in a loop.
  const std::int64_t blocks = std::min<std::int64_t>((count + kWarps - 1) / kWarps, 1 << 14);
  const dim3 grid(static_cast<unsigned>(blocks));
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  constexpr int kVector = 4;
  if (call.head_dim % kVector == 0 &&
      is_multiple(call.out, call.out_layout, sizeof(Out), kVector) &&
      is_multiple(call.out2, call.out2_layout, sizeof(In), kVector)) {
    merge_rows<Out, In, kVector><<<grid, kThreads, 0, cuda_stream>>>(call, count);
  } else {
    merge_rows<Out, In, 1><<<grid, kThreads, 0, cuda_stream>>>(call, count);
  }
  check_cuda(cudaGetLastError(), "the launch of the merge kernel");
}

template <class Out>
void launch(const MergeCall& call, Stream stream) {
  switch (call.out2_dtype) {
    case DType::f16:
      return launch<Out, __half>(call, stream);
    case DType::bf16:
      return launch<Out, __nv_bfloat16>(call, stream);
    default:
      return launch<Out, float>(call, stream);
  }
}

}  // namespace

void merge_cuda(const MergeCall& call, Stream stream) {
  if (call.batch == 0 || call.rows == 0 || call.heads == 0) return;
  switch (call.out_dtype) {
    case DType::f16:
      return launch<__half>(call, stream);
    case DType::bf16:
      return launch<__nv_bfloat16>(call, stream);
    default:
      return launch<float>(call, stream);
  }
}

}  // namespace batten::impl
