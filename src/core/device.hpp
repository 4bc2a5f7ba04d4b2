// What the library needs of a device, behind one interface: CUDA's runtime in the product, a fake
// in the tests, so that pools, caches, guards and error paths are proven on any machine.
#pragma once

#include <batten/types.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

namespace batten::impl {

using Stream = void*;  // cudaStream_t

struct DeviceProperties {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
  std::size_t shared_memory_per_block = 0;  // opt-in limit, bytes
  std::size_t total_memory = 0;             // bytes
  double clock_mhz = 0;                     // the multiprocessors' highest; 0: unknown
  double memory_gbps = 0;                   // 10^9 bytes a second; 0: unknown

  int arch() const noexcept { return 10 * major + minor; }
};

// Functions throw Error{Device, ...} naming the call that failed, unless said otherwise.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  // Number of usable devices. Never throws; 0 with a reason in why_unavailable().
  virtual int device_count() const noexcept = 0;
  virtual std::string why_unavailable() const = 0;

  virtual const DeviceProperties& properties(int index) const = 0;
  virtual int driver_version() const = 0;   // 13000 for 13.0; 0 when there is none
  virtual int runtime_version() const = 0;  // of the CUDA runtime built in

  virtual int current_device() const = 0;
  virtual void set_current_device(int index) = 0;

  // Stream-ordered memory of the current device, 256-byte aligned. Null when there is none left.
  virtual void* allocate(std::size_t bytes, Stream stream) noexcept = 0;
  virtual void free(void* data, Stream stream) noexcept = 0;
  // Frees after all of the device's work that may use it is done.
  virtual void free_synchronously(void* data) noexcept = 0;
  // For free_synchronously(). Also while streams are being captured: nothing of this goes into a
  // graph. Null when there is no memory left.
  virtual void* allocate_outside_of_graphs(std::size_t bytes) = 0;
  // A number of the capture that is under way on the stream, which no other capture has.
  virtual std::uint64_t capture_id(Stream stream) = 0;
  // Calls release(context) once the graph that is being captured on the stream is gone, and with it
  // all that was made of it; also if this throws. On any thread, and it must not use the runtime.
  virtual void at_end_of_graph(Stream stream, void (*release)(void*), void* context) = 0;

  // An id that no two living streams of the device share, nor a dead and a living one.
  virtual std::uint64_t stream_id(Stream stream) const = 0;
  virtual bool is_capturing(Stream stream) const = 0;
  virtual void synchronize(Stream stream) = 0;

  // Queued copy to host memory; complete after synchronize(stream).
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes, Stream stream) = 0;

  // Throws Error{Device} if the last asynchronous work failed at launch.
  virtual void check_last_error(const char* what) = 0;
};

// The process's runtime: CUDA's, or an empty one that says why there is none.
DeviceRuntime& device_runtime();

// Replaces the runtime for a test; null restores the real one. Not for use while calls are in
// flight.
void set_device_runtime_for_test(DeviceRuntime* runtime) noexcept;

// InvalidArgument for what is no device, Unavailable with the reason for one that is not there.
void check_device_exists(Device device);

// Makes a device current and restores the previous one at the end of the scope. A no-op for the
// CPU.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;  // -1: nothing to restore
};

}  // namespace batten::impl
