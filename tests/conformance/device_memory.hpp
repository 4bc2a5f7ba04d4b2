// Owned bytes on a device, and copies to and from the host.
#pragma once

#include <batten/types.hpp>
#include <cstddef>
#include <span>

namespace batten::conformance {

// GPUs that this process may use; 0 when built without CUDA.
int cuda_device_count();

// Waits for everything queued on the device (nothing to do on the CPU).
void synchronize(Device device);

// Memory of `bytes` bytes, aligned to 256, never null. CUDA copies go through a pair of pinned
// buffers, one filling while the other travels, and have ended when the call returns.
// Throws batten::Error.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Device device, std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  Device device() const noexcept { return device_; }
  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

  void upload(std::span<const std::byte> bytes, std::size_t offset = 0);
  void download(std::span<std::byte> bytes, std::size_t offset = 0) const;

 private:
  Device device_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace batten::conformance
