#include "support/nvml.hpp"

#include <dlfcn.h>

#include <array>

namespace batten::tools {
namespace {

// The few lines of nvml.h that are needed; its ABI is stable, and the header is often not
// installed.
using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;
constexpr unsigned kClockSm = 1;

class Nvml final : public PowerMeter {
 public:
  Nvml() = default;
  ~Nvml() override {
    if (started_) shutdown_();
    if (library_ != nullptr) ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::optional<double> sm_clock_mhz() const override {
    unsigned mhz = 0;
    if (clock_ == nullptr || clock_(device_, kClockSm, &mhz) != kNvmlSuccess) return {};
    return mhz;
  }
  std::optional<double> watts() const override {
    unsigned milliwatts = 0;
    if (power_ == nullptr || power_(device_, &milliwatts) != kNvmlSuccess) return {};
    return milliwatts / 1e3;
  }
  std::optional<double> joules() const override {
    unsigned long long millijoules = 0;  // NOLINT: NVML's type
    if (energy_ == nullptr || energy_(device_, &millijoules) != kNvmlSuccess) return {};
    return static_cast<double>(millijoules) / 1e3;
  }

  // Loads the library and starts it; false where there is none.
  bool start() {
    library_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return false;
    int (*initialise)() = nullptr;
    if (!find(initialise, "nvmlInit_v2") || !find(shutdown_, "nvmlShutdown")) return false;
    find(clock_, "nvmlDeviceGetClockInfo");
    find(power_, "nvmlDeviceGetPowerUsage");
    find(energy_, "nvmlDeviceGetTotalEnergyConsumption");
    started_ = initialise() == kNvmlSuccess;
    return started_;
  }

  bool select(const std::string& pci_bus_id) {
    int (*handle)(const char*, NvmlDevice*) = nullptr;
    return find(handle, "nvmlDeviceGetHandleByPciBusId_v2") &&
           handle(pci_bus_id.c_str(), &device_) == kNvmlSuccess;
  }

  std::string driver() const {
    int (*version)(char*, unsigned) = nullptr;
    std::array<char, 96> text{};
    if (!find(version, "nvmlSystemGetDriverVersion")) return "";
    return version(text.data(), static_cast<unsigned>(text.size())) == kNvmlSuccess ? text.data()
                                                                                    : "";
  }

 private:
  template <class Function>
  bool find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    return function != nullptr;
  }

  void* library_ = nullptr;
  bool started_ = false;
  NvmlDevice device_ = nullptr;
  int (*shutdown_)() = nullptr;
  int (*clock_)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power_)(NvmlDevice, unsigned*) = nullptr;
  int (*energy_)(NvmlDevice, unsigned long long*) = nullptr;  // NOLINT: NVML's type
};

}  // namespace

std::unique_ptr<PowerMeter> PowerMeter::open(const std::string& pci_bus_id) {
  auto meter = std::make_unique<Nvml>();
  if (pci_bus_id.empty() || !meter->start() || !meter->select(pci_bus_id)) return nullptr;
  return meter;
}

std::string nvidia_driver_version() {
  Nvml nvml;
  return nvml.start() ? nvml.driver() : "";
}

}  // namespace batten::tools
