// The transformer's own kernels. Arguments as in wan/ops.hpp; everything is queued on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda_graph.hpp"
#include "wan/ops.hpp"

namespace batten::wan::cuda {

constexpr auto check = impl::check_status;

// Rows of d elements: d a multiple of 4, at most 4,096, or of 8, at most 8,192.
void norm(const NormCall& call, cudaStream_t stream);
// d a multiple of 8, at most 8,192.
void rms(const RmsCall& call, cudaStream_t stream);
void add(void* a, const void* b, std::size_t count, DType dtype, cudaStream_t stream);
void activate(const void* x, DType x_dtype, void* out, DType out_dtype, std::size_t count,
              Activation activation, cudaStream_t stream);
void patchify(const PatchCall& call, cudaStream_t stream);
void unpatchify(const PatchCall& call, cudaStream_t stream);
void fill_random(void* target, std::size_t count, DType dtype, float mean, float spread,
                 std::uint64_t seed, cudaStream_t stream);

}  // namespace batten::wan::cuda
