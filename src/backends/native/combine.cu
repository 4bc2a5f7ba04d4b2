// One warp a row: each lane has four columns of every 128, and all parts' loads of a few columns
// are on their way at the same time.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "backends/native/combine.hpp"
#include "core/cuda_runtime.hpp"

namespace batten::impl::native {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kAtATime = 8;  // parts whose loads are on their way

__device__ void write(float* to, const float4& x) { *reinterpret_cast<float4*>(to) = x; }
__device__ void write(__nv_bfloat16* to, const float4& x) {
  const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(x.x, x.y),
                                   __floats2bfloat162_rn(x.z, x.w)};
  *reinterpret_cast<uint2*>(to) = reinterpret_cast<const uint2&>(pairs);
}
__device__ void write(__half* to, const float4& x) {
  const __half2 pairs[2] = {__floats2half2_rn(x.x, x.y), __floats2half2_rn(x.z, x.w)};
  *reinterpret_cast<uint2*>(to) = reinterpret_cast<const uint2&>(pairs);
}

__device__ float over_warp(float x, bool largest) {
  for (int lane = 16; lane > 0; lane /= 2) {
    const float other = __shfl_xor_sync(~0u, x, lane);
    x = largest ? fmaxf(x, other) : x + other;
  }
  return x;
}

// A row's parts. Lanes ask for a part's share together.
class Weights {
 public:
  // `lse`: of part 0; the next part's are kTileRows further.
  __device__ Weights(const float* lse, int parts) : lse_(lse), parts_(parts) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float largest = -INFINITY;
    for (int n = lane; n < parts; n += 32) largest = fmaxf(largest, at(n));
    // Where all logits are -infinity, parts have what 0 divided by 0 is.
    top_ = over_warp(largest, true);
    if (top_ == -INFINITY) top_ = 0;
    float sum = 0;
    for (int n = lane; n < parts; n += 32) sum += expf(at(n) - top_);
    sum_ = over_warp(sum, false);
  }

  // Exactly 1 where one part has all the weight.
  __device__ float share(int n) const { return __fdiv_rn(expf(at(n) - top_), sum_); }
  __device__ float lse() const { return top_ + logf(sum_); }

 private:
  __device__ float at(int n) const { return n < parts_ ? __ldcg(lse_ + n * kTileRows) : -INFINITY; }

  const float* lse_;
  int parts_;
  float top_;
  float sum_;
};

// The launch before is complete, and what it wrote can be read.
__device__ void wait_for_parts() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

template <class Out>
__global__ void __launch_bounds__(kThreads) combine_rows(const __grid_constant__ CombineCall c) {
  const sm90::Division& d = c.division;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int tile = row >> kTileRowsLog2;
  const int r = row & (kTileRows - 1);
  const sm90::TileRows rows = d.rows_of(tile);
  const int head = r >> d.box_log2;
  const int query = rows.row + (r & ((1 << d.box_log2) - 1));
  if (head >= rows.heads || query >= d.rows) return;

  const int first = d.first_part(tile);
  const int parts = d.end_part(tile) - first;
  const std::int64_t first_row = std::int64_t{first} * kTileRows + r;
  wait_for_parts();
  const Weights weights(c.part_lse + first_row, parts);
  const auto offset = [&](const Layout& layout) {
    return rows.sample * layout.batch + query * layout.row + (rows.head + head) * layout.head;
  };
  Out* const out = static_cast<Out*>(c.out) + offset(c.out_layout);
  const std::int64_t step = std::int64_t{kTileRows} * c.head_dim;
  for (int column = 4 * lane; column < c.head_dim; column += 128) {
    const float* const from = c.parts + first_row * c.head_dim + column;
    float4 sum{0, 0, 0, 0};
    for (int n = 0; n < parts; n += kAtATime) {
      float4 values[kAtATime];
#pragma unroll
      for (int i = 0; i < kAtATime; ++i) {
        if (n + i < parts)
          values[i] = __ldcg(reinterpret_cast<const float4*>(from + (n + i) * step));
      }
#pragma unroll
      for (int i = 0; i < kAtATime; ++i) {
        if (n + i >= parts) break;
        const float share = weights.share(n + i);
        sum.x = fmaf(share, values[i].x, sum.x);
        sum.y = fmaf(share, values[i].y, sum.y);
        sum.z = fmaf(share, values[i].z, sum.z);
        sum.w = fmaf(share, values[i].w, sum.w);
      }
    }
    write(out + column, sum);
  }
  if (lane == 0 && c.lse != nullptr) c.lse[offset(c.lse_layout)] = weights.lse();
}

template <class Out>
void launch(const CombineCall& call, Stream stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(call.division.tiles * (kTileRows / kWarps)));
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, &combine_rows<Out>, call),
             "native: launching the combine kernel");
}

}  // namespace

void combine(const CombineCall& call, Stream stream) {
  switch (call.dtype) {
    case DType::f16:
      return launch<__half>(call, stream);
    case DType::bf16:
      return launch<__nv_bfloat16>(call, stream);
    default:
      return launch<float>(call, stream);
  }
}

}  // namespace batten::impl::native
