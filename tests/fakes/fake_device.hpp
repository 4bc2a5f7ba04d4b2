// A device runtime whose devices are host memory and counters, so that pools, caches, guards and
// error paths are proven on any machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/device.hpp"

namespace batten::testing {

// What was asked of the devices so far.
struct DeviceCounts {
  int allocations = 0;        // that gave memory, graphs' own included
  int refused = 0;            // allocations that gave none
  int graph_allocations = 0;  // on a stream that was being captured
  int frees = 0;              // ordered on a stream
  int graph_frees = 0;        // of them, on a stream that was being captured
  int synchronous_frees = 0;
  int synchronisations = 0;
  int copies = 0;
  int device_switches = 0;
};

// Functions that a test can make fail; see fail_next().
enum class DeviceCall {
  current_device,
  set_current_device,
  stream_id,
  is_capturing,
  synchronize,
  copy_to_host,
  check_last_error,
  properties,
};
inline constexpr std::size_t kDeviceCalls = 8;

// Behaves as CUDA does where the library depends on it: the current device belongs to the thread,
// memory to the device that was current, streams to a device; a stream that is being captured
// cannot be synchronised. What a real device would answer with corruption (a double free, memory or
// a stream of the wrong device, a dead stream) is noted in misuses().
class FakeDeviceRuntime final : public impl::DeviceRuntime {
 public:
  explicit FakeDeviceRuntime(int devices = 1);
  ~FakeDeviceRuntime() override;
  FakeDeviceRuntime(const FakeDeviceRuntime&) = delete;
  FakeDeviceRuntime& operator=(const FakeDeviceRuntime&) = delete;

  int device_count() const noexcept override { return static_cast<int>(properties_.size()); }
  std::string why_unavailable() const override { return "the fake machine has no device"; }
  const impl::DeviceProperties& properties(int index) const override;
  int driver_version() const override { return 13010; }
  int runtime_version() const override { return 13000; }
  int current_device() const override;
  void set_current_device(int index) override;
  void* allocate(std::size_t bytes, impl::Stream stream) noexcept override;
  void free(void* data, impl::Stream stream) noexcept override;
  void free_synchronously(void* data) noexcept override;
  void* allocate_outside_of_graphs(std::size_t bytes) override;
  std::uint64_t capture_id(impl::Stream stream) override;
  void at_end_of_graph(impl::Stream stream, void (*release)(void*), void* context) override;
  std::uint64_t stream_id(impl::Stream stream) const override;
  bool is_capturing(impl::Stream stream) const override;
  void synchronize(impl::Stream stream) override;
  void copy_to_host(void* host, const void* device, std::size_t bytes,
                    impl::Stream stream) override;
  void check_last_error(const char* what) override;

  // ---- what a test does to the machine ----

  impl::Stream create_stream(int device = 0);
  void destroy_stream(impl::Stream stream);
  // A new stream that happens to get the handle of a dead one, as drivers do.
  void create_stream_at(impl::Stream handle, int device = 0);

  void begin_capture(impl::Stream stream);
  void end_capture(impl::Stream stream);
  // All graphs that were captured end.
  void destroy_graphs();

  // Allocations succeed while all of the memory in use stays within this.
  void limit_memory(std::size_t bytes);

  // The next `times` calls of the function throw Error{Device} with its name.
  void fail_next(DeviceCall call, int times = 1);

  impl::DeviceProperties& change_properties(int index);

  // ---- what a test asks of it ----

  DeviceCounts counts() const;
  std::size_t bytes_in_use() const;
  int blocks_in_use() const;
  // Whether [data, data + bytes) lies in one living block of the device.
  bool owns(const void* data, std::size_t bytes, int device) const;
  std::vector<std::string> misuses() const;

 private:
  struct StreamState {
    std::uint64_t id = 0;
    int device = 0;
    bool capturing = false;
    std::uint64_t capture = 0;
  };
  struct Block {
    std::size_t bytes = 0;
    int device = 0;
    bool of_graph = false;
  };

  void maybe_fail(DeviceCall call) const;  // mutex_ is held
  int current_locked() const;
  const StreamState* find(impl::Stream stream) const;
  void misuse(std::string what) const;
  void forget(void* data);

  mutable std::mutex mutex_;  // guards all below
  std::vector<impl::DeviceProperties> properties_;
  mutable std::map<std::thread::id, int> current_;
  std::vector<std::pair<void (*)(void*), void*>> ends_of_graphs_;
  std::map<impl::Stream, StreamState> streams_;
  std::map<const void*, Block> blocks_;
  mutable std::array<int, kDeviceCalls> failures_{};
  mutable DeviceCounts counts_;
  mutable std::vector<std::string> misuses_;
  std::size_t in_use_ = 0;
  std::size_t limit_ = SIZE_MAX;
  std::uint64_t next_id_ = 100;
  std::uintptr_t next_handle_ = 0x5000;
};

// Installs fake devices for a scope. At its end the library gives its memory back to them, and any
// misuse or leak fails the test.
class FakeDevices {
 public:
  explicit FakeDevices(int devices = 1);
  ~FakeDevices();
  FakeDevices(const FakeDevices&) = delete;
  FakeDevices& operator=(const FakeDevices&) = delete;

  FakeDeviceRuntime* operator->() noexcept { return &runtime_; }
  FakeDeviceRuntime& operator*() noexcept { return runtime_; }

 private:
  FakeDeviceRuntime runtime_;
};

}  // namespace batten::testing
