#include "backends/backend.hpp"

#include <fmt/format.h>

namespace batten::impl {

std::optional<Availability> without_gpu(Device device, std::string_view kernels) {
  if (device.is_cpu()) {
    return Availability{.available = false,
                        .reason = fmt::format("{} need a GPU", kernels),
                        .remedy = "use a cuda device, or the cpu backend",
                        .library = {}};
  }
  const DeviceRuntime& runtime = device_runtime();
  if (device.index >= 0 && device.index < runtime.device_count()) return std::nullopt;
  return Availability{.available = false,
                      .reason = runtime.device_count() == 0
                                    ? runtime.why_unavailable()
                                    : fmt::format("there is no {}", device.str()),
                      .remedy = "run where an NVIDIA GPU and its driver are",
                      .library = {}};
}

}  // namespace batten::impl
