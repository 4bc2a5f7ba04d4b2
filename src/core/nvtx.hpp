// A named range in the profiler's timeline; nothing in a build without CUDA.
#pragma once

#if BATTEN_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace batten::impl {

class NvtxRange {
 public:
#if BATTEN_WITH_CUDA
  // Both names must outlive the range. The backend is the range, the kernel the one inside it.
  NvtxRange(const char* backend, const char* kernel) {
    nvtxRangePushA(backend);
    nvtxRangePushA(kernel);
  }
  ~NvtxRange() {
    nvtxRangePop();
    nvtxRangePop();
  }
#else
  NvtxRange(const char* backend, const char* kernel) { (void)backend, (void)kernel; }
#endif
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace batten::impl
