// Clock, power and energy of a GPU from NVML, which is loaded at run time with the driver.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace batten::tools {

class PowerMeter {
 public:
  // The meter of the GPU with this PCI bus id, or null where NVML does not know it.
  static std::unique_ptr<PowerMeter> open(const std::string& pci_bus_id);
  virtual ~PowerMeter() = default;

  // Nothing where the card does not report the quantity.
  virtual std::optional<double> sm_clock_mhz() const = 0;
  virtual std::optional<double> watts() const = 0;
  virtual std::optional<double> joules() const = 0;  // since the driver was loaded
};

// "580.159.04"; "" where there is no driver.
std::string nvidia_driver_version();

}  // namespace batten::tools
