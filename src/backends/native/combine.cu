// What this costs is the time that loads are on their way, so a warp has many at once: those of a
// few parts of one row, or, where tiles have few parts, of a few rows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "backends/native/combine.hpp"
#include "backends/native/launch.hpp"

namespace batten::impl::native {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

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
  __device__ void load(const float* lse, int parts) {
    lse_ = lse;
    parts_ = parts;
    mine_ = at(lane());
  }

  __device__ void weigh() {
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

  const float* lse_ = nullptr;
  int parts_ = 0;
  float mine_ = 0;
  float top_ = 0;
  float sum_ = 0;
};

// Everything before it on the stream is complete. What comes after may be launched meanwhile.
__device__ void wait_for_parts() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

// A warp has `rows` of them, neighbours in a tile, and loads `at_a_time` parts of each at once.
template <class Out, int rows, int at_a_time>
__global__ void __launch_bounds__(kThreads) combine_rows(const __grid_constant__ CombineCall c) {
  const sm90::Division& d = c.division;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int first_row = warp * rows;
  const int tile = first_row >> kTileRowsLog2;
  const int r = first_row & (kTileRows - 1);
  // Rows of a warp have one head: a head has 8 rows of a tile or more.
  const sm90::TileRows t = d.rows_of(tile);
  const int head = r >> d.box_log2;
  const int query = t.row + (r & ((1 << d.box_log2) - 1));
  if (head >= t.heads || query >= d.rows) return;
  const int count = min(rows, d.rows - query);

  const int first = d.first_part(tile);
  const int parts = d.end_part(tile) - first;
  const std::int64_t at = std::int64_t{first} * kTileRows + r;
  const std::int64_t step = std::int64_t{kTileRows} * c.head_dim;
  const auto offset = [&](const Layout& layout, int i) {
    return t.sample * layout.batch + (query + i) * layout.row + (t.head + head) * layout.head;
  };
  // Lanes past the head dim go along: weights are the whole warp's. So do rows past the last.
  float4 values[at_a_time][rows];
  const auto load = [&](int column, int n) {
    const float* const from = c.parts + at * c.head_dim + min(column, c.head_dim - 4);
#pragma unroll
    for (int k = 0; k < at_a_time; ++k) {
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        if (n + k < parts) {
          values[k][i] = __ldcg(reinterpret_cast<const float4*>(from + (n + k) * step +
                                                                min(i, count - 1) * c.head_dim));
        }
      }
    }
  };

  wait_for_parts();
  load(4 * lane, 0);
  Weights weights[rows];
#pragma unroll
  for (int i = 0; i < rows; ++i) weights[i].load(c.part_lse + at + min(i, count - 1), parts);
#pragma unroll
  for (int i = 0; i < rows; ++i) weights[i].weigh();
#pragma unroll 1
  for (int column = 4 * lane; column - 4 * lane < c.head_dim; column += 128) {
    float4 sums[rows] = {};
#pragma unroll 1
    for (int n = 0; n < parts; n += at_a_time) {
      if (n > 0 || column >= 128) load(column, n);
      if (n % 32 == 0 && parts > 32) {
#pragma unroll
        for (int i = 0; i < rows; ++i) weights[i].move_to(n);
      }
#pragma unroll
      for (int k = 0; k < at_a_time; ++k) {
        if (n + k >= parts) break;
#pragma unroll
        for (int i = 0; i < rows; ++i) {
          const float share = weights[i].share(n + k);
          sums[i].x = fmaf(share, values[k][i].x, sums[i].x);
          sums[i].y = fmaf(share, values[k][i].y, sums[i].y);
          sums[i].z = fmaf(share, values[k][i].z, sums[i].z);
          sums[i].w = fmaf(share, values[k][i].w, sums[i].w);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      if (i < count && column < c.head_dim) {
        write(static_cast<Out*>(c.out) + offset(c.out_layout, i) + column, sums[i]);
      }
    }
  }
  if (lane == 0 && c.lse != nullptr) {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      if (i < count) c.lse[offset(c.lse_layout, i)] = weights[i].lse();
    }
  }
}

template <class Out>
void launch_combine(const CombineCall& call, Stream stream) {
  constexpr int kRows = 4;
  const sm90::Division& d = call.division;
  const bool few_parts = d.parts() <= 4 * d.tiles && d.rows >= kRows;
  const auto* const function = few_parts
                                   ? reinterpret_cast<const void*>(&combine_rows<Out, kRows, 2>)
                                   : reinterpret_cast<const void*>(&combine_rows<Out, 1, 8>);
  CombineCall parameter = call;
  launch(function,
         {.ctas = d.tiles * (kTileRows / kWarps) / (few_parts ? kRows : 1), .threads = kThreads},
         &parameter, stream, "native: launching the combine kernel");
}

}  // namespace

void combine(const CombineCall& call, Stream stream) {
  switch (call.dtype) {
    case DType::f16:
      return launch_combine<__half>(call, stream);
    case DType::bf16:
      return launch_combine<__nv_bfloat16>(call, stream);
    default:
      return launch_combine<float>(call, stream);
  }
}

}  // namespace batten::impl::native
