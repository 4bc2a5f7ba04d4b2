// One CTA, a thread for each sample: it finds the sample's place by looking at all others.
#include <cuda_runtime.h>

#include "backends/native/launch.hpp"
#include "backends/native/order.hpp"
#include "backends/native/shared/follow.cuh"
#include "backends/native/shared/schedule.cuh"
#include "core/cuda_runtime.hpp"

namespace batten::impl::native {
namespace {

// Heads under a causal mask whose tiles are mixed: as many as the L2 cache has keys and values of;
// if that is few, as many as share them well enough.
__device__ int section_heads(const Arguments& a, int keys) {
  constexpr int kFewest = 16;
  return min(max(a.deal.cached_keys / max(keys, 1), kFewest), a.num_heads);
}

__global__ void __launch_bounds__(kMostOrdered) order(const __grid_constant__ Arguments a) {
  __shared__ int keys[kMostOrdered], tiles[kMostOrdered];
  wait_for_launch_before();  // it may read what this one writes
  const int count = a.deal.count;
  const int i = static_cast<int>(threadIdx.x);
  Extent extent;
  int row_tiles = 0;
  if (i < count) {
    extent = sample_extent(a, i);
    if (extent.keys > 0) row_tiles = (extent.queries + kTileRows - 1) / kTileRows;
    keys[i] = row_tiles > 0 ? extent.keys : 0;
    tiles[i] = row_tiles * a.num_heads;
  }
  __syncthreads();
  if (i >= count) return;
  int rank = 0;
  int before = 0;
  for (int j = 0; j < count; ++j) {
    const bool comes_first = keys[j] > keys[i] || (keys[j] == keys[i] && j < i);
    rank += comes_first ? 1 : 0;
    before += comes_first ? tiles[j] : 0;
  }
  a.deal.samples[rank] = {.first_tile = before,
                          .sample = a.first_sample + i,
                          .queries = extent.queries,
                          .keys = extent.keys,
                          .first_row = extent.first_row,
                          .first_key = extent.first_key,
                          .row_tiles = max(row_tiles, 1),
                          .section_heads = section_heads(a, extent.keys)};
  if (rank == count - 1) a.deal.samples[count] = {.first_tile = before + tiles[i]};
  if (i == 0) *a.deal.next = 0;
}

}  // namespace

std::size_t deal_bytes(int samples, int ctas) {
  return sizeof(OrderedSample) * static_cast<std::size_t>(samples + 2) +
         sizeof(std::int32_t) * kRedoBits * static_cast<std::size_t>(ctas);
}

Deal deal_in(void* memory, int samples, int cached_keys) {
  Deal deal;
  deal.samples = static_cast<OrderedSample*>(memory);
  // The counter has the place of another entry.
  deal.next = reinterpret_cast<std::uint32_t*>(deal.samples + samples + 1);
  deal.taken = reinterpret_cast<std::int32_t*>(deal.samples + samples + 2);
  deal.count = samples;
  deal.cached_keys = cached_keys;
  return deal;
}

void load_order() {
  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&order)),
             "native: loading the kernel that orders samples");
}

void order_samples(Arguments& a, bool overlaps, Stream stream) {
  launch(reinterpret_cast<const void*>(&order),
         {.ctas = 1, .threads = (a.deal.count + 31) / 32 * 32, .overlaps = overlaps}, &a, stream,
         "native: launching the kernel that orders samples");
}

}  // namespace batten::impl::native
