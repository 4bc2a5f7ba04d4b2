// How a kernel follows the one before it without a gap.
#pragma once

namespace batten::impl::native {

// Everything before it on the stream is complete. What comes after may be launched meanwhile.
__device__ __forceinline__ void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

}  // namespace batten::impl::native
