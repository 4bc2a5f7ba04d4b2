// Lengths and offsets on their way to cuDNN. One block a sample, or a few where the sample may have
// rows to fill; every block works its sample out for itself, which takes a handful of loads.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "backends/cudnn/kernels.hpp"
#include "backends/cudnn/rows.cuh"
#include "core/cuda_runtime.hpp"

namespace batten::impl::cudnn {
namespace {

// The host's arrays, in the kernel's parameters: there when the launch returns, and kept by a
// graph.
template <int Count>
struct HostInts {
  std::int32_t values[Count];
};

// Positions of the host's arrays in HostInts; -1: not there.
struct Positions {
  int q_lengths = -1;
  int kv_lengths = -1;
  int offsets_q = -1;
  int offsets_kv = -1;
};

struct Parameters {
  Batch batch;
  Arrays arrays;  // on the device
  Positions positions;
  Prepared to;
  std::int64_t first = 0;  // sample of block 0
  int parts = 1;           // blocks a sample
};

// What every driver since CUDA 12.1, and every older one, takes as parameters.
static_assert(sizeof(Parameters) + sizeof(HostInts<kParameterInts>) <= 4096);

__device__ Array from_parameters(const Array& array, int position, const std::int32_t* values,
                                 std::int64_t first) {
  return position < 0 ? array : Array{values + position, first};
}

template <int Count>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const __grid_constant__ Parameters p,
                   const __grid_constant__ HostInts<Count> host) {
  const Batch& batch = p.batch;
  const std::int64_t b = p.first + blockIdx.x / p.parts;
  const int part = static_cast<int>(blockIdx.x) % p.parts;

  Arrays arrays = p.arrays;
  if constexpr (Count > 1) {
    arrays.q_lengths =
        from_parameters(arrays.q_lengths, p.positions.q_lengths, host.values, p.first);
    arrays.kv_lengths =
        from_parameters(arrays.kv_lengths, p.positions.kv_lengths, host.values, p.first);
    arrays.offsets_q =
        from_parameters(arrays.offsets_q, p.positions.offsets_q, host.values, p.first);
    arrays.offsets_kv =
        from_parameters(arrays.offsets_kv, p.positions.offsets_kv, host.values, p.first);
  }
  const Work work = work_of(batch, arrays, b);
  const Prepared& to = p.to;

  if (part == 0 && threadIdx.x == 0) {
    if (to.lengths_q != nullptr) {
      to.lengths_q[b] = static_cast<std::int32_t>(work.queries.count);
      to.lengths_kv[b] = static_cast<std::int32_t>(work.keys.count);
    }
    if (to.offsets_q != nullptr) {
      to.offsets_q[b] = offset_of(batch.q, b, work.queries.begin);
      to.offsets_k[b] = offset_of(batch.k, b, work.keys.begin);
      to.offsets_v[b] = offset_of(batch.v, b, work.keys.begin);
      to.offsets_out[b] = offset_of(batch.out, b, work.queries.begin);
      to.offsets_lse[b] = offset_of(batch.lse, b, work.queries.begin);
      if (b == batch.size - 1) {
        to.offsets_q[b + 1] = end_of(batch, batch.q, batch.tokens_q, batch.max_q);
        to.offsets_k[b + 1] = end_of(batch, batch.k, batch.tokens_kv, batch.max_kv);
        to.offsets_v[b + 1] = end_of(batch, batch.v, batch.tokens_kv, batch.max_kv);
        to.offsets_out[b + 1] = end_of(batch, batch.out, batch.tokens_q, batch.max_q);
        to.offsets_lse[b + 1] = end_of(batch, batch.lse, batch.tokens_q, batch.max_q);
      }
    }
  }
  if (to.out == nullptr) return;
  const std::int64_t seen = work.queries.begin + work.queries.count;
  write_unseen(batch, b, work.rows.begin, work.queries.begin, part, p.parts, to.out, to.lse);
  write_unseen(batch, b, seen, work.rows.begin + work.rows.count, part, p.parts, to.out, to.lse);
}

template <int Count>
void launch(const Parameters& p, const HostInts<Count>& host, std::int64_t samples, Stream stream) {
  const auto blocks = static_cast<unsigned>(samples * p.parts);
  prepare_kernel<Count><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p, host);
  check_cuda(cudaGetLastError(), "cudnn: launching the preparation kernel");
}

}  // namespace

void prepare(const Batch& batch, const Arrays& arrays, const ArraySources& sources,
             const Prepared& to, Stream stream) {
  Parameters p;
  p.batch = batch;
  p.arrays = arrays;
  p.to = to;
  p.parts = to.out == nullptr ? 1 : parts_of(batch.max_q);
  const int host_arrays = sources.host_count();
  if (host_arrays == 0) {
    launch<1>(p, {}, batch.size, stream);
    return;
  }
  HostInts<kParameterInts> host;
  const std::int64_t step = samples_per_launch(host_arrays);
  for (std::int64_t first = 0; first < batch.size; first += step) {
    const std::int64_t samples = std::min(step, batch.size - first);
    int position = 0;
    const auto place = [&](bool on_host, const Array& array, std::int64_t extra, int& where) {
      if (!on_host) return;
      where = position;
      std::copy_n(array.data + first, samples + extra, host.values + position);
      position += static_cast<int>(samples + extra);
    };
    place(sources.q_lengths, arrays.q_lengths, 0, p.positions.q_lengths);
    place(sources.kv_lengths, arrays.kv_lengths, 0, p.positions.kv_lengths);
    place(sources.offsets_q, arrays.offsets_q, 1, p.positions.offsets_q);
    place(sources.offsets_kv, arrays.offsets_kv, 1, p.positions.offsets_kv);
    p.first = first;
    launch(p, host, samples, stream);
  }
}

void load_prepare_kernel() {
  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, prepare_kernel<1>), "cudnn: loading a kernel");
  check_cuda(cudaFuncGetAttributes(&attributes, prepare_kernel<kParameterInts>),
             "cudnn: loading a kernel");
}

}  // namespace batten::impl::cudnn
