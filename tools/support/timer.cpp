#include "support/timer.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.hpp"

namespace batten::tools {
namespace {

constexpr std::size_t kUnknownCacheBytes = std::size_t{32} << 20;

class CpuTimer final : public Timer {
 public:
  void* stream() const override { return nullptr; }
  void start() override { started_ = Clock::now(); }
  void stop() override {
    samples_.push_back(std::chrono::duration<double, std::milli>(Clock::now() - started_).count());
  }
  std::vector<double> take_ms() override { return std::exchange(samples_, {}); }
  void synchronize() override {}
  std::function<void()> record(const std::function<void()>&) override {
    fail(ErrorCode::Unsupported, "graphs need a CUDA device; use --scope call on the CPU");
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point started_{};
  std::vector<double> samples_;
};

#if !BATTEN_WITH_CUDA
[[noreturn]] void no_cuda(Device device) {
  fail(ErrorCode::Unavailable, "{}: this build of batten has no CUDA support; build it with CUDA",
       device.str());
}
#endif

}  // namespace

std::unique_ptr<Timer> make_timer(Device device) {
  if (device.is_cpu()) return std::make_unique<CpuTimer>();
#if BATTEN_WITH_CUDA
  return make_gpu_timer(device.index);
#else
  no_cuda(device);
#endif
}

std::size_t cache_bytes(Device device) {
  if (device.is_cpu()) {
    const long bytes = std::max(::sysconf(_SC_LEVEL3_CACHE_SIZE), ::sysconf(_SC_LEVEL2_CACHE_SIZE));
    return bytes > 0 ? static_cast<std::size_t>(bytes) : kUnknownCacheBytes;
  }
#if BATTEN_WITH_CUDA
  return gpu_cache_bytes(device.index);
#else
  no_cuda(device);
#endif
}

std::string pci_bus_id(Device device) {
#if BATTEN_WITH_CUDA
  if (!device.is_cpu()) return gpu_pci_bus_id(device.index);
#else
  static_cast<void>(device);
#endif
  return "";
}

}  // namespace batten::tools
