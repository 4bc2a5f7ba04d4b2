// Measures calls on a device: the CPU's clock, or CUDA events and graphs on one stream.
#pragma once

#include <batten/types.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace batten::tools {

class Timer {
 public:
  virtual ~Timer() = default;

  // The stream that all measured work goes to; null on the CPU.
  virtual void* stream() const = 0;

  // A sample is what runs between these two. Samples may be queued one after another.
  virtual void start() = 0;
  virtual void stop() = 0;

  // Waits for the device; milliseconds of the samples since the last call, in order.
  virtual std::vector<double> take_ms() = 0;
  virtual void synchronize() = 0;

  // Queues in `calls` are recorded once; the result queues them all again in one launch.
  // Throws Error{Unsupported} on the CPU.
  virtual std::function<void()> record(const std::function<void()>& calls) = 0;
};

// The timer of `device`; Error{Unavailable} for a GPU in a build without CUDA.
std::unique_ptr<Timer> make_timer(Device device);

// Bytes of the cache that inputs must exceed, so that each call reads from memory: the GPU's L2, or
// the CPU's largest cache. A guess where the system does not say.
std::size_t cache_bytes(Device device);

// "0000:19:00.0", how NVML names the device; "" for the CPU.
std::string pci_bus_id(Device device);

// In gpu_timer.cpp; only defined in a build with CUDA.
std::unique_ptr<Timer> make_gpu_timer(int index);
std::size_t gpu_cache_bytes(int index);
std::string gpu_pci_bus_id(int index);

}  // namespace batten::tools
