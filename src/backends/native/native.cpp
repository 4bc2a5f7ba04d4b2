#include "backends/native/native.hpp"

#include <fmt/format.h>

#include "backends/native/cost.hpp"
#include "backends/native/plan.hpp"
#include "backends/native/rules.hpp"

namespace batten::impl {
namespace {

class Native final : public Backend {
 public:
  std::string_view name() const override { return "native"; }

  std::vector<std::string> forms() const override { return native::forms(); }

  Availability availability(Device device) const override {
    if (auto absent = without_gpu(device, "its kernels")) return *absent;
    const DeviceProperties& properties = device_runtime().properties(device.index);
    if (properties.arch() != 90) {
      return {.available = false,
              .reason = fmt::format("{} is sm{}; its kernels are for sm90", properties.name,
                                    properties.arch()),
              .remedy = "use the cudnn or single backend on this device",
              .library = {}};
    }
    return {.available = true, .reason = {}, .remedy = {}, .library = {}};
  }

  std::optional<std::string> why_not(const Problem& problem, Device /*device*/) const override {
    return native::why_not(problem);
  }

  std::optional<std::string> why_not(const Problem& problem, const Shape& shape, Device /*device*/,
                                     const BackendOptions& options) const override {
    if (auto reason = native::why_not_form(problem, options.form)) return reason;
    return native::why_not(problem, shape);
  }

  Shape plan_key(const Problem& /*problem*/, const Shape& shape,
                 const BackendOptions& /*options*/) const override {
    return native::plan_key(shape);
  }

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
};

}  // namespace

std::unique_ptr<Backend> make_native() { return std::make_unique<Native>(); }

}  // namespace batten::impl
