// The fp32 multiply-add rate that a machine sustains: the ceiling of the CPU numbers.
#pragma once

namespace batten::benchmarks {

// GFLOP/s of independent fused multiply-adds in registers, on `threads` threads at once, with the
// widest vectors of this machine. The best of several runs.
double fma_peak_gflops(int threads);

// The SIMD target that was measured: "AVX3".
const char* fma_peak_target();

}  // namespace batten::benchmarks
