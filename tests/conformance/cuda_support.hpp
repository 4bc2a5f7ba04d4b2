// What the CUDA runtime needs around it. Only for sources compiled with BATTEN_WITH_CUDA=1.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <batten/types.hpp>

namespace batten::conformance {

inline void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // an allocation that failed must not haunt the next launch check
  const ErrorCode code =
      status == cudaErrorMemoryAllocation ? ErrorCode::OutOfMemory : ErrorCode::Device;
  throw Error(code, fmt::format("{}: {}", what, cudaGetErrorString(status)));
}

// Makes a device current for a scope.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(Device device) {
    cuda_check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (device.index != previous_) cuda_check(cudaSetDevice(device.index), "cudaSetDevice");
  }
  ~CudaDeviceGuard() { (void)cudaSetDevice(previous_); }
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

// A stream that waits for no other (cudaStreamNonBlocking).
class CudaStream {
 public:
  CudaStream() {
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaStream() { (void)cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const noexcept { return stream_; }
  void synchronize() const { cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace batten::conformance
