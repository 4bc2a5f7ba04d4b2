#include "backends/native/native.hpp"

#include <fmt/format.h>

#include "backends/native/cost.hpp"
#include "backends/native/plan.hpp"
#include "backends/native/rules.hpp"
#include "backends/native/target.hpp"

namespace batten::impl {
namespace {

class Native final : public Backend {
 public:
  std::string_view name() const override { return "native"; }

  std::vector<std::string> forms() const override { return native::forms(); }

  Availability availability(Device device) const override {
    if (auto absent = without_gpu(device, "its kernels")) return *absent;
    const DeviceProperties& properties = device_runtime().properties(device.index);
    if (const auto reason = native::why_no_target(properties.arch())) {
      return {.available = false,
              .reason = fmt::format("{}: {}", properties.name, *reason),
              .remedy = properties.arch() < 80
                            ? "use a newer device"
                            : "unset BATTEN_NATIVE_ARCH, or use the cudnn or single backend",
              .library = {}};
    }
    return {.available = true,
            .reason = {},
            .remedy = {},
            .library = native::kernels_text(native::target_of(properties))};
  }

  std::optional<std::string> why_not(const Problem& problem, Device device) const override {
    return native::why_not(target(device), problem);
  }

  std::optional<std::string> why_not(const Problem& problem, const Shape& shape, Device device,
                                     const BackendOptions& options) const override {
    return native::why_not(target(device), problem, shape, options.form);
  }

  Shape plan_key(const Problem& /*problem*/, const Shape& shape,
                 const BackendOptions& /*options*/) const override {
    return native::plan_key(shape);
  }

  std::string settings() const override { return native::target_settings(); }

  std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& problem,
                                          const Shape& shape,
                                          const BackendOptions& options) const override {
    return native::predict(card, problem, shape, options);
  }

  std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                        const Shape& shape,
                                        const BackendOptions& options) const override {
    return native::why_not_on(card, problem, shape, options);
  }

  std::shared_ptr<const Plan> plan(const Problem& problem, const Shape& shape, Device device,
                                   const BackendOptions& options) const override {
    return native::make_plan(problem, shape, device, options);
  }

 private:
  // Of a device that the backend is available on.
  static native::Target target(Device device) {
    return native::target_of(device_runtime().properties(device.index));
  }
};

}  // namespace

std::unique_ptr<Backend> make_native() { return std::make_unique<Native>(); }

}  // namespace batten::impl
