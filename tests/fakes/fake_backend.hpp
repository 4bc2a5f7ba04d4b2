// A backend whose every answer a test decides, and which remembers what it was asked.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/backend.hpp"
#include "dispatch/registry.hpp"

namespace batten::testing {

// One Plan::run.
struct RecordedRun {
  impl::Shape shape;
  impl::Call call;
  void* workspace = nullptr;
  int current_device = -1;  // -1 where there are no devices
  int plan = 0;             // 1 for the backend's first plan, and so on
};

// The answers. A null function is the answer of a backend that serves everything everywhere. Change
// them before the backend is used, not while calls are in flight.
struct FakeAnswers {
  std::vector<std::string> forms;
  std::function<impl::Availability(Device)> availability;
  std::function<std::optional<std::string>(const impl::Problem&, Device)> why_not_problem;
  std::function<std::optional<std::string>(const impl::Problem&, const impl::Shape&, Device,
                                           const impl::BackendOptions&)>
      why_not_shape;
  std::function<impl::Shape(const impl::Problem&, const impl::Shape&)> plan_key;
  impl::PlanInfo plan_info{.form = "dense",
                           .kernel = "fake_kernel",
                           .tile = "128x64",
                           .splits = 1,
                           .library = {},
                           .workspace_size = 0};
  std::function<std::size_t(const impl::Shape&)> workspace_size;
  std::function<void()> on_plan;  // may wait, or throw
  std::function<void(const RecordedRun&)> on_run;
  std::function<std::string()> remark;
  std::function<std::optional<double>(const impl::Shape&)> predict_us;  // null: no prediction
};

class FakeBackend final : public impl::Backend {
 public:
  explicit FakeBackend(std::string name) : state_(std::make_shared<State>()) {
    state_->name = std::move(name);
  }

  FakeAnswers& answers() noexcept { return state_->answers; }
  int plans_built() const noexcept { return state_->plans_built; }
  int plans_alive() const noexcept { return state_->plans_alive; }
  std::vector<RecordedRun> runs() const;
  // The shapes that plans were built for.
  std::vector<impl::Shape> planned() const;

  // Shorthands.
  void unavailable(std::string reason, std::string remedy);
  void refuse_problems(std::string reason);
  void refuse_shapes(std::string reason);
  void takes(double us);

  std::string_view name() const override { return state_->name; }
  std::vector<std::string> forms() const override { return state_->answers.forms; }
  impl::Availability availability(Device device) const override;
  std::optional<std::string> why_not(const impl::Problem& problem, Device device) const override;
  std::optional<std::string> why_not(const impl::Problem& problem, const impl::Shape& shape,
                                     Device device,
                                     const impl::BackendOptions& options) const override;
  std::optional<impl::cost::Prediction> predict(const impl::cost::Card& card,
                                                const impl::Problem& problem,
                                                const impl::Shape& shape,
                                                const impl::BackendOptions& options) const override;
  impl::Shape plan_key(const impl::Problem& problem, const impl::Shape& shape,
                       const impl::BackendOptions& options) const override;
  std::shared_ptr<const impl::Plan> plan(const impl::Problem& problem, const impl::Shape& shape,
                                         Device device,
                                         const impl::BackendOptions& options) const override;

 private:
  struct State {
    std::string name;
    FakeAnswers answers;
    std::atomic<int> plans_built{0};  // attempts that failed included
    std::atomic<int> plans_alive{0};
    std::mutex mutex;  // guards the two below
    std::vector<RecordedRun> runs;
    std::vector<impl::Shape> planned;
  };
  class FakePlan;

  std::shared_ptr<State> state_;  // shared with the plans, which may outlive the backend
};

// Replaces the process's backends for a scope, in auto's order.
class FakeBackends {
 public:
  FakeBackends();
  ~FakeBackends();
  FakeBackends(const FakeBackends&) = delete;
  FakeBackends& operator=(const FakeBackends&) = delete;

  // Adds one behind the others. The reference lives as long as this object.
  FakeBackend& add(std::string name, bool automatic = true);

 private:
  std::vector<impl::Registration> real_;
};

}  // namespace batten::testing
