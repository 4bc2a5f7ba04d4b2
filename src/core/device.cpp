#include "core/device.hpp"

#include <atomic>

#include "core/cuda_runtime.hpp"
#include "core/error.hpp"

namespace batten::impl {
namespace {

// The runtime of a build without CUDA.
class NoDevices final : public DeviceRuntime {
 public:
  int device_count() const noexcept override { return 0; }
  std::string why_unavailable() const override {
    return "this build of batten has no CUDA support";
  }
  const DeviceProperties& properties(int) const override { none(); }
  int driver_version() const override { return 0; }
  int runtime_version() const override { return 0; }
  int current_device() const override { none(); }
  void set_current_device(int) override { none(); }
  void* allocate(std::size_t, Stream) noexcept override { return nullptr; }
  void free(void*, Stream) noexcept override {}
  void free_synchronously(void*) noexcept override {}
  void* allocate_outside_of_graphs(std::size_t) override { none(); }
  std::uint64_t capture_id(Stream) override { none(); }
  void at_end_of_graph(Stream, void (*)(void*), void*) override { none(); }
  std::uint64_t stream_id(Stream) const override { none(); }
  bool is_capturing(Stream) const override { none(); }
  void synchronize(Stream) override { none(); }
  void copy_to_host(void*, const void*, std::size_t, Stream) override { none(); }
  void check_last_error(const char*) override { none(); }

 private:
  [[noreturn]] void none() const { throw Error(ErrorCode::Unavailable, why_unavailable()); }
};

std::atomic<DeviceRuntime*> test_runtime{nullptr};

DeviceRuntime& product_runtime() {
#if BATTEN_WITH_CUDA
  return cuda_runtime();
#else
  static NoDevices none;
  return none;
#endif
}

}  // namespace

DeviceRuntime& device_runtime() {
  DeviceRuntime* runtime = test_runtime.load(std::memory_order_acquire);
  return runtime != nullptr ? *runtime : product_runtime();
}

void set_device_runtime_for_test(DeviceRuntime* runtime) noexcept {
  test_runtime.store(runtime, std::memory_order_release);
}

void check_device_exists(Device device) {
  if (device.is_cpu()) {
    if (device.index != 0) {
      fail(ErrorCode::InvalidArgument, "device cpu:{}: the CPU has index 0", device.index);
    }
    return;
  }
  if (device.type != DeviceType::cuda) {
    fail(ErrorCode::InvalidArgument, "device type {}: expected cpu or cuda",
         static_cast<int>(device.type));
  }
  const DeviceRuntime& runtime = device_runtime();
  const int count = runtime.device_count();
  if (count == 0) fail(ErrorCode::Unavailable, "{}: {}", device.str(), runtime.why_unavailable());
  if (device.index < 0 || device.index >= count) {
    fail(ErrorCode::Unavailable, "{}: there {} {} CUDA device{}", device.str(),
         count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
  }
}

DeviceGuard::DeviceGuard(Device device) {
  if (device.is_cpu()) return;
  DeviceRuntime& runtime = device_runtime();
  const int current = runtime.current_device();
  if (current == device.index) return;
  runtime.set_current_device(device.index);
  previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ < 0) return;
  try {
    device_runtime().set_current_device(previous_);
  } catch (...) {  // nothing a destructor could do; the next call reports the device's error
  }
}

}  // namespace batten::impl
