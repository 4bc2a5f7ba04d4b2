#include "fakes/fake_backend.hpp"

#include "core/device.hpp"
#include "dispatch/plan_cache.hpp"

namespace batten::testing {

class FakeBackend::FakePlan final : public impl::Plan {
 public:
  FakePlan(std::shared_ptr<State> state, int number, impl::PlanInfo info)
      : state_(std::move(state)), number_(number) {
    info_ = std::move(info);
    ++state_->plans_alive;
  }
  ~FakePlan() override { --state_->plans_alive; }
  FakePlan(const FakePlan&) = delete;
  FakePlan& operator=(const FakePlan&) = delete;

  void run(const impl::Shape& shape, const impl::Call& call, void* workspace) const override {
    const impl::DeviceRuntime& runtime = impl::device_runtime();
    const RecordedRun run{
        .shape = shape,
        .call = call,
        .workspace = workspace,
        .current_device = runtime.device_count() > 0 ? runtime.current_device() : -1,
        .plan = number_};
    {
      const std::lock_guard lock(state_->mutex);
      state_->runs.push_back(run);
    }
    if (state_->answers.on_run) state_->answers.on_run(run);
  }

  std::string remark() const override {
    return state_->answers.remark ? state_->answers.remark() : std::string();
  }

 private:
  std::shared_ptr<State> state_;
  int number_;
};

std::vector<RecordedRun> FakeBackend::runs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->runs;
}

std::vector<impl::Shape> FakeBackend::planned() const {
  const std::lock_guard lock(state_->mutex);
  return state_->planned;
}

void FakeBackend::unavailable(std::string reason, std::string remedy) {
  answers().availability = [reason = std::move(reason), remedy = std::move(remedy)](Device) {
    return impl::Availability{
        .available = false, .reason = reason, .remedy = remedy, .library = {}};
  };
}

void FakeBackend::refuse_problems(std::string reason) {
  answers().why_not_problem = [reason = std::move(reason)](const impl::Problem&, Device) {
    return std::optional(reason);
  };
}

void FakeBackend::refuse_shapes(std::string reason) {
  answers().why_not_shape = [reason = std::move(reason)](const impl::Problem&, const impl::Shape&,
                                                         Device, const impl::BackendOptions&) {
    return std::optional(reason);
  };
}

impl::Availability FakeBackend::availability(Device device) const {
  if (state_->answers.availability) return state_->answers.availability(device);
  return {.available = true, .reason = {}, .remedy = {}, .library = {}};
}

std::optional<std::string> FakeBackend::why_not(const impl::Problem& problem, Device device) const {
  if (state_->answers.why_not_problem) return state_->answers.why_not_problem(problem, device);
  return std::nullopt;
}

std::optional<std::string> FakeBackend::why_not(const impl::Problem& problem,
                                                const impl::Shape& shape, Device device,
                                                const impl::BackendOptions& options) const {
  if (state_->answers.why_not_shape) {
    return state_->answers.why_not_shape(problem, shape, device, options);
  }
  return std::nullopt;
}

void FakeBackend::takes(double us) {
  answers().predict_us = [us](const impl::Shape&) { return us; };
}

std::optional<impl::cost::Prediction> FakeBackend::predict(
    const impl::cost::Card& /*card*/, const impl::Problem& /*problem*/, const impl::Shape& shape,
    const impl::BackendOptions& /*options*/) const {
  const auto us = state_->answers.predict_us ? state_->answers.predict_us(shape) : std::nullopt;
  if (!us) return std::nullopt;
  impl::cost::Prediction prediction;
  prediction.us = *us;
  prediction.kernel = state_->name;
  return prediction;
}

impl::Shape FakeBackend::plan_key(const impl::Problem& problem, const impl::Shape& shape,
                                  const impl::BackendOptions&) const {
  return state_->answers.plan_key ? state_->answers.plan_key(problem, shape) : shape;
}

std::shared_ptr<const impl::Plan> FakeBackend::plan(const impl::Problem&, const impl::Shape& shape,
                                                    Device, const impl::BackendOptions&) const {
  const int number = ++state_->plans_built;
  {
    const std::lock_guard lock(state_->mutex);
    state_->planned.push_back(shape);
  }
  const FakeAnswers& answers = state_->answers;
  if (answers.on_plan) answers.on_plan();
  impl::PlanInfo info = answers.plan_info;
  if (answers.workspace_size) info.workspace_size = answers.workspace_size(shape);
  return std::make_shared<FakePlan>(state_, number, std::move(info));
}

FakeBackends::FakeBackends() : real_(impl::Registry::instance().exchange_for_test({})) {}

FakeBackends::~FakeBackends() {
  impl::PlanCache::instance().clear();  // a later backend may get the address of one of ours
  impl::Registry::instance().exchange_for_test(std::move(real_));
}

FakeBackend& FakeBackends::add(std::string name, bool automatic) {
  auto backend = std::make_unique<FakeBackend>(std::move(name));
  FakeBackend& added = *backend;
  auto all = impl::Registry::instance().exchange_for_test({});
  all.push_back({std::move(backend), automatic});
  impl::Registry::instance().exchange_for_test(std::move(all));
  return added;
}

}  // namespace batten::testing
