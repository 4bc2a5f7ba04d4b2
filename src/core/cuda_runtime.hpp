// The CUDA runtime behind DeviceRuntime, and error checks for CUDA code.
#pragma once

#include "core/device.hpp"

namespace batten::impl {

#if BATTEN_WITH_CUDA
DeviceRuntime& cuda_runtime();

// Throws Error{Device, "what: CUDA's text"} unless `error` (a cudaError_t) is success;
// Error{OutOfMemory} for an allocation failure.
void check_cuda(int error, const char* what);
#endif

}  // namespace batten::impl
