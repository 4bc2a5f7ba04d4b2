// Rows of BSHD outputs that see no key. Lengths form: cuDNN has written there by now, and not what
// batten promises.
#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cudnn/kernels.hpp"
#include "backends/cudnn/rows.cuh"
#include "core/cuda_runtime.hpp"

namespace batten::impl::cudnn {
namespace {

__global__ void __launch_bounds__(kThreads)
    repair_kernel(const __grid_constant__ Batch batch, const __grid_constant__ Repair rows,
                  int parts) {
  const std::int64_t b = blockIdx.x / parts;
  const int part = static_cast<int>(blockIdx.x) % parts;
  const std::int64_t begin = rows.first != nullptr ? rows.first[b] : rows.begin;
  write_unseen(batch, b, begin, rows.end, part, parts, rows.out, rows.lse);
}

}  // namespace

void repair(const Batch& batch, const Repair& rows, Stream stream) {
  const int parts = parts_of(rows.end - rows.begin);
  const auto blocks = static_cast<unsigned>(batch.size * parts);
  repair_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(batch, rows, parts);
  check_cuda(cudaGetLastError(), "cudnn: launching the repair kernel");
}

void load_prepare_kernel();  // prepare.cu

void load_kernels() {
  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, repair_kernel), "cudnn: loading a kernel");
  load_prepare_kernel();
}

}  // namespace batten::impl::cudnn
