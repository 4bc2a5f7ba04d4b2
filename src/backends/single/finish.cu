#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "backends/single/finish.hpp"
#include "core/cuda_runtime.hpp"

namespace batten::impl::single {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // elements of 16 bytes
constexpr float kLn2 = 0.693147180559945309417f;

static_assert(sizeof(Finish) <= 4096 - 8);

// Element n of a segment's rows, heads and `width` parts of a head, parts fastest.
struct Position {
  std::int64_t row, head, part;
};

// 64-bit division is slow, and needed by very large segments only.
template <class Index>
__device__ Position position_of(Index n, Index heads, Index width) {
  const Index head = n / width;
  return {static_cast<std::int64_t>(head / heads), static_cast<std::int64_t>(head % heads),
          static_cast<std::int64_t>(n % width)};
}

__device__ Position position_of(std::int64_t n, std::int64_t count, int heads, int width) {
  if (count <= std::numeric_limits<std::uint32_t>::max()) {
    return position_of<std::uint32_t>(static_cast<std::uint32_t>(n), heads, width);
  }
  return position_of<std::uint64_t>(n, heads, width);
}

__global__ void __launch_bounds__(kThreads) finish_rows(const __grid_constant__ Finish finish) {
  const Segment& segment = finish.segments[blockIdx.y];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;

  if (finish.lse != nullptr) {
    const std::int64_t count = segment.rows * finish.num_heads;
    for (std::int64_t n = first; n < count; n += step) {
      const Position at = position_of(n, count, finish.num_heads, 1);
      float* lse = finish.lse + segment.lse + at.row * finish.lse_layout.row +
                   at.head * finish.lse_layout.head;
      if (segment.clear) {
        *lse = -std::numeric_limits<float>::infinity();
      } else {
        // FlashInfer's logarithm is to base 2.
        const float* source = finish.scratch_lse == nullptr
                                  ? lse
                                  : finish.scratch_lse + segment.scratch * finish.num_heads + n;
        *lse = *source * kLn2;
      }
    }
  }

  if (segment.clear || finish.scratch_out != nullptr) {
    const int width = finish.head_dim / kVector;
    const std::int64_t count = segment.rows * finish.num_heads * width;
    const auto* source =
        static_cast<const uint4*>(finish.scratch_out) + segment.scratch * finish.num_heads * width;
    for (std::int64_t n = first; n < count; n += step) {
      const Position at = position_of(n, count, finish.num_heads, width);
      const std::int64_t element = segment.out + at.row * finish.out_layout.row +
                                   at.head * finish.out_layout.head + at.part * kVector;
      auto* out = reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(finish.out) + element);
      *out = segment.clear ? uint4{0, 0, 0, 0} : source[n];
    }
  }
}

}  // namespace

void run_finish(const Finish& finish, Stream stream) {
  if (finish.count == 0) return;
  const bool moves_out = finish.scratch_out != nullptr ||
                         std::any_of(finish.segments, finish.segments + finish.count,
                                     [](const Segment& segment) { return segment.clear; });
  std::int64_t rows = 0;
  for (int n = 0; n < finish.count; ++n) rows = std::max(rows, finish.segments[n].rows);
  const std::int64_t elements =
      rows * finish.num_heads * (moves_out ? finish.head_dim / kVector : 1);
  // Large segments loop: a few thousand blocks fill any device.
  const std::int64_t blocks = std::min<std::int64_t>((elements + kThreads - 1) / kThreads, 2048);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(finish.count));
  finish_rows<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(finish);
  check_cuda(cudaGetLastError(), "the launch of single's finish kernel");
}

}  // namespace batten::impl::single
