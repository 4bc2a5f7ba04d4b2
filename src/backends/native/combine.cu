// One warp a row: each lane has four columns of every 128. What it costs is the time that loads are
// on their way, so a warp has many at once, and a multiprocessor many warps.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "backends/native/combine.hpp"
#include "backends/native/launch.hpp"
#include "backends/native/shared/follow.cuh"
#include "core/cuda_runtime.hpp"

namespace batten::impl::native {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 8;  // that share a multiprocessor

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

// What each of a row's parts counts: of 32 parts at a time, one a lane.
class Weights {
 public:
  // `lse`: of part 0; the next part's are kTileRows further. For the whole warp, as all of this.
  __device__ Weights(const float* lse, int parts) : lse_(lse), parts_(parts), mine_(at(lane())) {
    float largest = mine_;
    for (int n = lane() + 32; n < parts_; n += 32) largest = fmaxf(largest, at(n));
    // Where all logits are -infinity, parts have what 0 divided by 0 is.
    top_ = over_warp(largest, true);
    if (top_ == -INFINITY) top_ = 0;
    float sum = expf(mine_ - top_);
    for (int n = lane() + 32; n < parts_; n += 32) sum += expf(at(n) - top_);
    sum_ = over_warp(sum, false);
    // Exactly 1 where one part has all the weight.
    mine_ = __fdiv_rn(expf(mine_ - top_), sum_);
  }

  // From part `first` on, a multiple of 32.
  __device__ void move_to(int first) { mine_ = __fdiv_rn(expf(at(first + lane()) - top_), sum_); }
  __device__ float share(int n) const { return __shfl_sync(~0u, mine_, n % 32); }
  __device__ float lse() const { return top_ + logf(sum_); }

 private:
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ float at(int n) const { return n < parts_ ? __ldcg(lse_ + n * kTileRows) : -INFINITY; }

  const float* lse_;
  int parts_;
  float mine_;
  float top_;
  float sum_;
};

// Loads `at_a_time` parts at once.
template <class Out, int at_a_time>
__global__ void __launch_bounds__(kThreads, kBlocks)
    combine_rows(const __grid_constant__ CombineCall c) {
  const Division& d = c.division;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int tile = row >> kTileRowsLog2;
  const int r = row & (kTileRows - 1);
  const TileRows rows = d.rows_of(tile);
  const int head = r >> d.box_log2;
  const int query = rows.row + (r & ((1 << d.box_log2) - 1));
  if (head >= rows.heads || query >= d.rows) return;

  const int first = d.first_part(tile);
  const int parts = d.end_part(tile) - first;
  const std::int64_t first_row = std::int64_t{first} * kTileRows + r;
  const std::int64_t step = std::int64_t{kTileRows} * c.head_dim;
  const auto offset = [&](const Layout& layout) {
    return rows.sample * layout.batch + query * layout.row + (rows.head + head) * layout.head;
  };
  // Lanes past the head dim go along: weights are the whole warp's.
  float4 values[at_a_time];
  const auto load = [&](int column, int n) {
    const float* const from = c.parts + first_row * c.head_dim + min(column, c.head_dim - 4);
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      if (n + i < parts) values[i] = __ldcg(reinterpret_cast<const float4*>(from + (n + i) * step));
    }
  };

  wait_for_launch_before();
  load(4 * lane, 0);
  Weights weights(c.part_lse + first_row, parts);
#pragma unroll 1
  for (int column = 4 * lane; column - 4 * lane < c.head_dim; column += 128) {
    float4 sum{0, 0, 0, 0};
#pragma unroll 1
    for (int n = 0; n < parts; n += at_a_time) {
      if (n > 0 || column >= 128) load(column, n);
      if (n % 32 == 0 && parts > 32) weights.move_to(n);
#pragma unroll
      for (int i = 0; i < at_a_time; ++i) {
        if (n + i >= parts) break;
        const float share = weights.share(n + i);
        sum.x = fmaf(share, values[i].x, sum.x);
        sum.y = fmaf(share, values[i].y, sum.y);
        sum.z = fmaf(share, values[i].z, sum.z);
        sum.w = fmaf(share, values[i].w, sum.w);
      }
    }
    if (column < c.head_dim) {
      write(static_cast<Out*>(c.out) + offset(c.out_layout) + column, sum);
    }
  }
  if (lane == 0 && c.lse != nullptr) c.lse[offset(c.lse_layout)] = weights.lse();
}

template <class Out>
const void* kernel_for(const Division& d) {
  const bool few_parts = d.parts() <= 4 * d.tiles;
  return few_parts ? reinterpret_cast<const void*>(&combine_rows<Out, 4>)
                   : reinterpret_cast<const void*>(&combine_rows<Out, 8>);
}

const void* kernel_of(const Division& division, DType dtype) {
  switch (dtype) {
    case DType::f16:
      return kernel_for<__half>(division);
    case DType::bf16:
      return kernel_for<__nv_bfloat16>(division);
    default:
      return kernel_for<float>(division);
  }
}

}  // namespace

void load_combine(const Division& division, DType dtype) {
  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, kernel_of(division, dtype)),
             "native: loading the combine kernel");
}

void combine(const CombineCall& call, Stream stream) {
  CombineCall parameter = call;
  launch(kernel_of(call.division, call.dtype),
         {.ctas = call.division.tiles * (kTileRows / kWarps),
          .threads = kThreads,
          .overlaps = call.overlaps},
         &parameter, stream, "native: launching the combine kernel");
}

}  // namespace batten::impl::native
