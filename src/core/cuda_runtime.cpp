#include "core/cuda_runtime.hpp"

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "core/error.hpp"

namespace batten::impl {

void check_cuda(int error, const char* what) {
  const auto code = static_cast<cudaError_t>(error);
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // clears what is not sticky, so that the next call starts clean
  fail(code == cudaErrorMemoryAllocation ? ErrorCode::OutOfMemory : ErrorCode::Device,
       "{}: CUDA reported {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code));
}

RelaxedCapture::RelaxedCapture() {
  auto mode = cudaStreamCaptureModeRelaxed;
  check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  previous_ = mode;
}

RelaxedCapture::~RelaxedCapture() {
  auto mode = static_cast<cudaStreamCaptureMode>(previous_);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

namespace {

class CudaRuntime final : public DeviceRuntime {
 public:
  CudaRuntime() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver && driver_version() == 0) {
      why_ = "no NVIDIA driver was found";
    } else if (error != cudaSuccess) {
      why_ = cudaGetErrorString(error);
    } else if (count == 0) {
      why_ = "no CUDA device is visible";
    } else {
      count_ = count;
    }
    properties_.resize(static_cast<std::size_t>(count_));
    once_ = std::make_unique<std::once_flag[]>(static_cast<std::size_t>(count_));
  }

  int device_count() const noexcept override { return count_; }
  std::string why_unavailable() const override { return why_; }

  const DeviceProperties& properties(int index) const override {
    if (index < 0 || index >= count_) {
      fail(ErrorCode::Unavailable, "cuda:{}: there are {} CUDA devices", index, count_);
    }
    const auto i = static_cast<std::size_t>(index);
    std::call_once(once_[i], [&] { properties_[i] = query(index); });
    return properties_[i];
  }

  int driver_version() const override {
    int version = 0;
    (void)cudaDriverGetVersion(&version);
    return version;
  }
  int runtime_version() const override {
    int version = 0;
    (void)cudaRuntimeGetVersion(&version);
    return version;
  }

  int current_device() const override {
    int index = 0;
    check_cuda(cudaGetDevice(&index), "cudaGetDevice");
    return index;
  }
  void set_current_device(int index) override { check_cuda(cudaSetDevice(index), "cudaSetDevice"); }

  void* allocate(std::size_t bytes, Stream stream) noexcept override {
    void* data = nullptr;
    if (cudaMallocAsync(&data, bytes, static_cast<cudaStream_t>(stream)) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    return data;
  }
  void free(void* data, Stream stream) noexcept override {
    (void)cudaFreeAsync(data, static_cast<cudaStream_t>(stream));
  }
  void free_synchronously(void* data) noexcept override {
    const RelaxedCapture relaxed;
    // cudaFree itself does not wait where memory came from cudaMallocAsync.
    (void)cudaDeviceSynchronize();
    (void)cudaFree(data);
    (void)cudaGetLastError();
  }

  std::uint64_t stream_id(Stream stream) const override {
    unsigned long long id = 0;  // NOLINT: CUDA's type
    check_cuda(cudaStreamGetId(static_cast<cudaStream_t>(stream), &id), "cudaStreamGetId");
    return id;
  }
  void* allocate_outside_of_graphs(std::size_t bytes) override {
    const RelaxedCapture relaxed;
    void* data = nullptr;
    if (cudaMalloc(&data, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    return data;
  }
  std::uint64_t capture_id(Stream stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    check_cuda(cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id, nullptr,
                                        nullptr, nullptr, nullptr),
               "cudaStreamGetCaptureInfo");
    return id;
  }
  void at_end_of_graph(Stream stream, void (*release)(void*), void* context) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    cudaUserObject_t object = nullptr;
    const cudaError_t made =
        cudaUserObjectCreate(&object, context, release, 1, cudaUserObjectNoDestructorSync);
    if (made != cudaSuccess) release(context);
    check_cuda(made, "cudaUserObjectCreate");
    (void)cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, nullptr, &graph,
                                   nullptr, nullptr, nullptr);
    const cudaError_t kept = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
    if (kept != cudaSuccess) (void)cudaUserObjectRelease(object, 1);
    check_cuda(kept, "cudaGraphRetainUserObject");
  }
  bool is_capturing(Stream stream) const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status),
               "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }
  void synchronize(Stream stream) override {
    check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes, Stream stream) override {
    check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost,
                               static_cast<cudaStream_t>(stream)),
               "cudaMemcpyAsync");
  }
  void check_last_error(const char* what) override { check_cuda(cudaGetLastError(), what); }

 private:
  static DeviceProperties query(int index) {
    cudaDeviceProp p{};
    check_cuda(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
    // Where the driver does not say, estimates of times are coarser, and nothing else is lost.
    const auto attribute = [&](cudaDeviceAttr which) {
      int value = 0;
      if (cudaDeviceGetAttribute(&value, which, index) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0.0;
      }
      return static_cast<double>(value);
    };
    const double clock_khz = attribute(cudaDevAttrClockRate);
    const double memory_khz = attribute(cudaDevAttrMemoryClockRate);
    const double bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth);
    return {.name = p.name,
            .major = p.major,
            .minor = p.minor,
            .multiprocessors = p.multiProcessorCount,
            .l2_bytes = static_cast<std::size_t>(p.l2CacheSize),
            .shared_memory_per_block = p.sharedMemPerBlockOptin,
            .total_memory = p.totalGlobalMem,
            .clock_mhz = clock_khz * 1e-3,
            .memory_gbps = 2 * memory_khz * bus_bits / 8 * 1e-6};  // twice a clock
  }

  int count_ = 0;
  std::string why_;
  mutable std::vector<DeviceProperties> properties_;
  mutable std::unique_ptr<std::once_flag[]> once_;  // one a device
};

}  // namespace

DeviceRuntime& cuda_runtime() {
  static auto* runtime = new CudaRuntime;  // never destroyed: pools free memory at exit
  return *runtime;
}

}  // namespace batten::impl
