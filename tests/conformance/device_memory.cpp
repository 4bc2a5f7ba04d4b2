#include "device_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#if BATTEN_WITH_CUDA
#include "cuda_support.hpp"
#endif

namespace batten::conformance {
namespace {

constexpr std::align_val_t kAlignment{256};

#if BATTEN_WITH_CUDA
// Two pinned buffers of one device: while one is on the bus the host fills (or empties) the other.
class PinnedPair {
 public:
  explicit PinnedPair(Device device) : guard_(device) {
    for (Half& half : halves_) {
      cuda_check(cudaMallocHost(reinterpret_cast<void**>(&half.data), kHalfBytes),
                 "cudaMallocHost");
      cuda_check(cudaEventCreateWithFlags(&half.done, cudaEventDisableTiming), "cudaEventCreate");
    }
  }
  ~PinnedPair() {
    for (Half& half : halves_) {
      (void)cudaEventDestroy(half.done);
      (void)cudaFreeHost(half.data);
    }
  }
  PinnedPair(const PinnedPair&) = delete;
  PinnedPair& operator=(const PinnedPair&) = delete;

  void upload(std::byte* target, std::span<const std::byte> bytes) {
    for (std::size_t done = 0, turn = 0; done < bytes.size(); ++turn) {
      Half& half = halves_[turn % 2];
      const std::size_t count = std::min(kHalfBytes, bytes.size() - done);
      wait(half);
      std::memcpy(half.data, bytes.data() + done, count);
      copy(half, target + done, half.data, count, cudaMemcpyHostToDevice);
      done += count;
    }
    stream_.synchronize();
  }

  void download(std::span<std::byte> bytes, const std::byte* source) {
    const std::size_t chunks = (bytes.size() + kHalfBytes - 1) / kHalfBytes;
    const auto size_of_chunk = [&](std::size_t i) {
      return std::min(kHalfBytes, bytes.size() - i * kHalfBytes);
    };
    for (std::size_t i = 0; i <= chunks; ++i) {
      if (i < chunks)
        copy(halves_[i % 2], halves_[i % 2].data, source + i * kHalfBytes, size_of_chunk(i),
             cudaMemcpyDeviceToHost);
      if (i == 0) continue;
      Half& ready = halves_[(i - 1) % 2];
      wait(ready);
      std::memcpy(bytes.data() + (i - 1) * kHalfBytes, ready.data, size_of_chunk(i - 1));
    }
  }

 private:
  static constexpr std::size_t kHalfBytes = std::size_t{8} << 20;
  struct Half {
    std::byte* data = nullptr;
    cudaEvent_t done = nullptr;
  };

  void wait(Half& half) {
    cuda_check(cudaEventSynchronize(half.done), "copy between host and GPU");
  }
  void copy(Half& half, void* target, const void* source, std::size_t count, cudaMemcpyKind kind) {
    cuda_check(cudaMemcpyAsync(target, source, count, kind, stream_.get()), "cudaMemcpyAsync");
    cuda_check(cudaEventRecord(half.done, stream_.get()), "cudaEventRecord");
  }

  CudaDeviceGuard guard_;
  CudaStream stream_;
  Half halves_[2];
};

// Below this the pinned pair costs more than it saves.
constexpr std::size_t kDirectBytes = std::size_t{4} << 20;
#else
[[noreturn]] void built_without_cuda() {
  throw Error(ErrorCode::Unavailable, "cuda memory asked for, but this program has no CUDA in it");
}
#endif

void check_range(std::size_t offset, std::size_t count, std::size_t size) {
  if (offset > size || count > size - offset)
    throw Error(ErrorCode::Internal,
                fmt::format("copy of {} bytes at {} leaves a buffer of {}", count, offset, size));
}

}  // namespace

int cuda_device_count() {
#if BATTEN_WITH_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
#endif
  return 0;
}

void synchronize(Device device) {
  if (device.is_cpu()) return;
#if BATTEN_WITH_CUDA
  const CudaDeviceGuard guard(device);
  cuda_check(cudaDeviceSynchronize(), "waiting for the GPU");
#else
  built_without_cuda();
#endif
}

DeviceMemory::DeviceMemory(Device device, std::size_t bytes) : device_(device), size_(bytes) {
  const std::size_t at_least_one = std::max<std::size_t>(bytes, 1);
  if (device.is_cpu()) {
    try {
      data_ = static_cast<std::byte*>(::operator new(at_least_one, kAlignment));
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::OutOfMemory, fmt::format("no memory for {} bytes on cpu", bytes));
    }
    return;
  }
#if BATTEN_WITH_CUDA
  const CudaDeviceGuard guard(device);
  void* data = nullptr;
  cuda_check(cudaMalloc(&data, at_least_one), "cudaMalloc");
  data_ = static_cast<std::byte*>(data);
#else
  built_without_cuda();
#endif
}

DeviceMemory::~DeviceMemory() {
  if (!data_) return;
  if (device_.is_cpu()) {
    ::operator delete(data_, kAlignment);
    return;
  }
#if BATTEN_WITH_CUDA
  (void)cudaFree(data_);  // finds the device from the address
#endif
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void DeviceMemory::upload(std::span<const std::byte> bytes, std::size_t offset) {
  check_range(offset, bytes.size(), size_);
  if (bytes.empty()) return;
  if (device_.is_cpu()) {
    std::memcpy(data_ + offset, bytes.data(), bytes.size());
    return;
  }
#if BATTEN_WITH_CUDA
  if (bytes.size() > kDirectBytes) return PinnedPair(device_).upload(data_ + offset, bytes);
  const CudaDeviceGuard guard(device_);
  cuda_check(cudaMemcpy(data_ + offset, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
             "cudaMemcpy to the GPU");
  // A pageable copy may still be on its way from the driver's staging buffer, which only the
  // default stream waits for.
  cuda_check(cudaStreamSynchronize(nullptr), "cudaMemcpy to the GPU");
#endif
}

void DeviceMemory::download(std::span<std::byte> bytes, std::size_t offset) const {
  check_range(offset, bytes.size(), size_);
  if (bytes.empty()) return;
  if (device_.is_cpu()) {
    std::memcpy(bytes.data(), data_ + offset, bytes.size());
    return;
  }
#if BATTEN_WITH_CUDA
  if (bytes.size() > kDirectBytes) return PinnedPair(device_).download(bytes, data_ + offset);
  const CudaDeviceGuard guard(device_);
  cuda_check(cudaMemcpy(bytes.data(), data_ + offset, bytes.size(), cudaMemcpyDeviceToHost),
             "cudaMemcpy from the GPU");
#endif
}

}  // namespace batten::conformance
