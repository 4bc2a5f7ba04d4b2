// cuDNN handles: one a thread and device, as cuDNN asks.
#pragma once

#include "core/cuda_runtime.hpp"
#include "core/device.hpp"

namespace batten::impl::cudnn {

// The calling thread's cudnnHandle_t of the current device, whose index is `device`. A thread that
// ends leaves its handles to later threads; none is ever destroyed, since that would call into CUDA
// while the process ends.
void* thread_handle(int device);

// What the handle does from here on is queued on `stream`.
void set_stream(void* handle, Stream stream);

// For its lifetime the handle works on a stream that is nobody else's, and calls that a capture of
// another thread would forbid are allowed: cuDNN allocates while it builds plans.
class BuildScope {
 public:
  explicit BuildScope(void* handle);
  ~BuildScope();
  BuildScope(const BuildScope&) = delete;
  BuildScope& operator=(const BuildScope&) = delete;

 private:
  RelaxedCapture relaxed_;
  void* handle_;
  Stream stream_ = nullptr;
};

}  // namespace batten::impl::cudnn
