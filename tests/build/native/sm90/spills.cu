// Wrong on purpose: more live values than the 32 registers that the launch bounds leave.
#include <cstdint>

__global__ void __launch_bounds__(1024, 2) spills(float* data) {
  float values[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) values[i] = data[threadIdx.x + i * 1024];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) data[threadIdx.x * 64 + i] = values[63 - i] * values[i];
}
