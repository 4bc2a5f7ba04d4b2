// A backend that this build or version does not contain: it keeps its name and says why it is not
// there.
#pragma once

#include <string>
#include <utility>

#include "backends/backend.hpp"
#include "core/error.hpp"

namespace batten::impl {

class AbsentBackend final : public Backend {
 public:
  AbsentBackend(std::string name, std::string reason, std::string remedy)
      : name_(std::move(name)), reason_(std::move(reason)), remedy_(std::move(remedy)) {}

  std::string_view name() const override { return name_; }
  Availability availability(Device) const override {
    return {.available = false, .reason = reason_, .remedy = remedy_, .library = {}};
  }
  std::optional<std::string> why_not(const Problem&, Device) const override { return reason_; }
  std::shared_ptr<const Plan> plan(const Problem&, const Shape&, Device,
                                   const BackendOptions&) const override {
    throw Error(ErrorCode::Unavailable, reason_);
  }

 private:
  std::string name_, reason_, remedy_;
};

}  // namespace batten::impl
