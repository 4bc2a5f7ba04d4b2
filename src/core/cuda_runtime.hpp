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

// For its lifetime this thread may do what a stream capture, its own or another thread's, would
// forbid: allocate, make streams. Nothing of it is captured.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int previous_;  // cudaStreamCaptureMode
};

}  // namespace batten::impl
