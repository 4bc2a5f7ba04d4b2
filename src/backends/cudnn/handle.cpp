#include "backends/cudnn/handle.hpp"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <vector>

#include "backends/cudnn/message.hpp"
#include "backends/cudnn/symbols.hpp"
#include "core/cuda_runtime.hpp"
#include "core/error.hpp"

namespace batten::impl::cudnn {
namespace {

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  fail(status == CUDNN_STATUS_ALLOC_FAILED ? ErrorCode::OutOfMemory : ErrorCode::Device,
       "cuDNN: {}: {}", what, one_line(cudnnGetErrorString(status)));
}

// Handles that ended threads have left, by device.
struct Idle {
  std::mutex mutex;
  std::map<int, std::vector<cudnnHandle_t>> handles;
};
Idle& idle() {
  static Idle& idle = *new Idle;  // outlives every thread
  return idle;
}

class ThreadHandles {
 public:
  ThreadHandles() { (void)idle(); }
  ~ThreadHandles() {
    const std::lock_guard lock(idle().mutex);
    for (const auto& [device, handle] : handles_) idle().handles[device].push_back(handle);
  }

  cudnnHandle_t get(int device) {
    for (const auto& [known, handle] : handles_) {
      if (known == device) return handle;
    }
    const cudnnHandle_t handle = take(device);
    handles_.emplace_back(device, handle);
    return handle;
  }

 private:
  static cudnnHandle_t take(int device) {
    {
      const std::lock_guard lock(idle().mutex);
      auto& left = idle().handles[device];
      if (!left.empty()) {
        const cudnnHandle_t handle = left.back();
        left.pop_back();
        return handle;
      }
    }
    // A thread's first call may be in a capture; creating a handle allocates.
    const RelaxedCapture relaxed;
    cudnnHandle_t handle = nullptr;
    check(cudnnCreate(&handle), "creating a handle");
    return handle;
  }

  std::vector<std::pair<int, cudnnHandle_t>> handles_;
};

}  // namespace

void* thread_handle(int device) {
  thread_local ThreadHandles handles;
  return handles.get(device);
}

void set_stream(void* handle, Stream stream) {
  check(cudnnSetStream(static_cast<cudnnHandle_t>(handle), static_cast<cudaStream_t>(stream)),
        "choosing the stream");
}

BuildScope::BuildScope(void* handle) : handle_(handle) {
  cudaStream_t stream = nullptr;
  try {
    // Not a blocking stream: a capture on one would forbid the default stream to every thread.
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    stream_ = stream;
    set_stream(handle_, stream_);
  } catch (...) {
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
    throw;
  }
}

BuildScope::~BuildScope() {
  (void)cudnnSetStream(static_cast<cudnnHandle_t>(handle_), nullptr);
  (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

}  // namespace batten::impl::cudnn
