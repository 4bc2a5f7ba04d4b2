// A backend that this build or version does not contain: it keeps its name and says why it is not
// there.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "backends/backend.hpp"
#include "core/error.hpp"

namespace batten::impl {

// What it would do on a card, where the build at least knows that; null where not.
struct Elsewhere {
  std::optional<cost::Prediction> (*predict)(const cost::Card&, const Problem&, const Shape&,
                                             const BackendOptions&) = nullptr;
  std::optional<std::string> (*why_not_on)(const cost::Card&, const Problem&, const Shape&,
                                           const BackendOptions&) = nullptr;
  std::vector<std::string> (*forms)() = nullptr;
};

class AbsentBackend final : public Backend {
 public:
  AbsentBackend(std::string name, std::string reason, std::string remedy, Elsewhere elsewhere = {})
      : name_(std::move(name)),
        reason_(std::move(reason)),
        remedy_(std::move(remedy)),
        elsewhere_(elsewhere) {}

  std::string_view name() const override { return name_; }
  std::vector<std::string> forms() const override {
    return elsewhere_.forms == nullptr ? std::vector<std::string>() : elsewhere_.forms();
  }
  Availability availability(Device) const override {
    return {.available = false, .reason = reason_, .remedy = remedy_, .library = {}};
  }
  std::optional<std::string> why_not(const Problem&, Device) const override { return reason_; }
  std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& problem,
                                          const Shape& shape,
                                          const BackendOptions& options) const override {
    if (elsewhere_.predict == nullptr) return std::nullopt;
    return elsewhere_.predict(card, problem, shape, options);
  }
  std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                        const Shape& shape,
                                        const BackendOptions& options) const override {
    if (elsewhere_.why_not_on == nullptr) return reason_;
    return elsewhere_.why_not_on(card, problem, shape, options);
  }
  std::shared_ptr<const Plan> plan(const Problem&, const Shape&, Device,
                                   const BackendOptions&) const override {
    throw Error(ErrorCode::Unavailable, reason_);
  }

 private:
  std::string name_, reason_, remedy_;
  Elsewhere elsewhere_;
};

}  // namespace batten::impl
