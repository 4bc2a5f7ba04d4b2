#include "wan/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.hpp"

namespace batten::wan {
namespace {

constexpr double kTrainTimesteps = 1000;

double shifted(double sigma, double shift) { return shift * sigma / (1 + (shift - 1) * sigma); }

// `n` values from `first` on, (last - first) / divisor apart.
std::vector<double> line(double first, double last, int n, int divisor) {
  std::vector<double> values(static_cast<std::size_t>(n), first);
  for (std::size_t i = 1; i < values.size(); ++i)
    values[i] = first + (last - first) * static_cast<double>(i) / divisor;
  return values;
}

// The multistep solver UniPC with B(h) = expm1(-h) ("bh2") and orders up to 2, for a model whose
// output is turned into a prediction of the clean latents. Each step corrects the latents with the
// newest prediction, then predicts the next ones.
class UniPc final : public Solver {
 public:
  explicit UniPc(Schedule schedule) : Solver(std::move(schedule)) {}

  std::vector<History> history() const override {
    std::vector<History> parts;
    if (at() == 0) return parts;
    parts.push_back({"corrected", corrected_});
    parts.push_back({"prediction", newest_});
    if (!older_.empty()) parts.push_back({"older_prediction", older_});
    return parts;
  }

 private:
  struct Level {
    double sigma, alpha, lambda;
  };
  // 1 - sigma as float32 has it: near 1 that is 1.3 % away from the exact value, and videos are
  // compared with programs that compute it so.
  Level level(int i) const {
    const float sigma = schedule().sigmas[static_cast<std::size_t>(i)];
    const double alpha = static_cast<double>(1.0F - sigma);
    return {static_cast<double>(sigma), alpha,
            std::log(alpha) - std::log(static_cast<double>(sigma))};
  }
  // The first step has one prediction to go by. The last one goes to sigma 0, where no order
  // counts.
  static int order(int i) { return std::min(2, i + 1); }

  bool restore(std::vector<History>&& parts) override {
    const std::size_t expected = at() == 0 ? 0 : at() == 1 ? 2 : 3;
    if (parts.size() != expected) return false;
    for (History& part : parts) {
      if (part.name == "corrected") corrected_ = std::move(part.values);
      if (part.name == "prediction") newest_ = std::move(part.values);
      if (part.name == "older_prediction") older_ = std::move(part.values);
    }
    return expected == 0 || (!corrected_.empty() && corrected_.size() == newest_.size() &&
                             (expected == 2 || older_.size() == newest_.size()));
  }

  void advance(std::span<const float> velocity, std::span<float> x) override {
    const int i = at();
    const auto sigma = static_cast<float>(level(i).sigma);
    std::vector<float> clean(x.size());
    for (std::size_t e = 0; e < x.size(); ++e) clean[e] = x[e] - sigma * velocity[e];
    if (i > 0) correct(i, clean, x);
    older_ = std::move(newest_);
    newest_ = std::move(clean);
    corrected_.assign(x.begin(), x.end());
    predict(i, x);
  }

  void correct(int i, const std::vector<float>& clean, std::span<float> x) const {
    const Level now = level(i);
    const Level before = level(i - 1);
    const double h = now.lambda - before.lambda;
    const double e = std::expm1(-h);
    const double phi = -e / h - 1;
    double of_new = 0.5;  // weights of the differences to the previous prediction
    double of_old = 0;
    if (order(i - 1) == 2) {
      const double r = (level(i - 2).lambda - before.lambda) / h;
      const double b1 = phi / e;
      const double b2 = 2 * (-phi / h - 0.5) / e;
      const double rho = (b1 - b2) / (1 - r);
      of_old = rho / r;
      of_new = b1 - rho;
    }
    const auto keep = static_cast<float>(now.sigma / before.sigma);
    const auto base = static_cast<float>(now.alpha * e);
    const auto a = static_cast<float>(of_new);
    const auto b = static_cast<float>(of_old);
    for (std::size_t n = 0; n < x.size(); ++n) {
      const float m = newest_[n];
      float d = a * (clean[n] - m);
      if (of_old != 0) d += b * (older_[n] - m);
      x[n] = keep * corrected_[n] - base * m - base * d;
    }
  }

  void predict(int i, std::span<float> x) const {
    if (schedule().sigmas[static_cast<std::size_t>(i) + 1] == 0) {
      std::copy(newest_.begin(), newest_.end(), x.begin());
      return;
    }
    const Level now = level(i);
    const Level next = level(i + 1);
    const double h = next.lambda - now.lambda;
    const double e = std::expm1(-h);
    const auto keep = static_cast<float>(next.sigma / now.sigma);
    const auto base = static_cast<float>(next.alpha * e);
    const bool second = order(i) == 2;
    const auto half = second ? static_cast<float>(0.5 * h / (level(i - 1).lambda - now.lambda)) : 0;
    for (std::size_t n = 0; n < x.size(); ++n) {
      const float m = newest_[n];
      const float d = second ? half * (older_[n] - m) : 0;
      x[n] = keep * x[n] - base * m - base * d;
    }
  }

  std::vector<float> corrected_;  // the latents of the last step, after its correction
  std::vector<float> newest_, older_;
};

class Euler final : public Solver {
 public:
  explicit Euler(Schedule schedule) : Solver(std::move(schedule)) {}

 private:
  void advance(std::span<const float> velocity, std::span<float> x) override {
    const auto i = static_cast<std::size_t>(at());
    const float step = schedule().sigmas[i + 1] - schedule().sigmas[i];
    for (std::size_t n = 0; n < x.size(); ++n) x[n] += step * velocity[n];
  }
};

}  // namespace

const std::vector<std::string>& grid_names() {
  static const std::vector<std::string> names{"diffusers", "wan", "flow-match"};
  return names;
}

Schedule make_schedule(std::string_view grid, int steps, double shift) {
  if (steps < 1 || steps > 1000)
    fail(ErrorCode::InvalidArgument, "{} steps, expected 1 to 1000", steps);
  if (!std::isfinite(shift) || shift <= 0)
    fail(ErrorCode::InvalidArgument, "shift {} is not a positive number", shift);
  Schedule schedule{.grid = std::string(grid), .shift = shift, .sigmas = {}, .timesteps = {}};
  std::vector<double> sigmas;
  if (grid == "diffusers") {
    sigmas = line(1, 1 / kTrainTimesteps, steps, steps);
  } else if (grid == "wan") {
    sigmas = line(1 - 1 / kTrainTimesteps, 0, steps, steps);
  } else if (grid == "flow-match") {
    // The scheduler shifts its smallest sigma when it is made, and all of them again here.
    sigmas = line(1, shifted(1 / kTrainTimesteps, shift), steps, steps - 1);
  } else {
    fail(ErrorCode::InvalidArgument, "sigma grid '{}' is none of {}", grid,
         fmt::join(grid_names(), ", "));
  }
  for (double& sigma : sigmas) sigma = shifted(sigma, shift);
  constexpr double kMargin = 1e-6;  // the logarithm of 1 - sigma must exist
  if (grid == "diffusers" && std::abs(sigmas[0] - 1) < kMargin) sigmas[0] -= kMargin;
  for (const double sigma : sigmas) {
    const auto rounded = static_cast<float>(sigma);
    schedule.sigmas.push_back(rounded);
    schedule.timesteps.push_back(grid == "flow-match"
                                     ? rounded * static_cast<float>(kTrainTimesteps)
                                     : static_cast<float>(std::trunc(sigma * kTrainTimesteps)));
  }
  schedule.sigmas.push_back(0);
  return schedule;
}

const std::vector<std::string>& Solver::names() {
  static const std::vector<std::string> names{"unipc", "euler"};
  return names;
}

std::unique_ptr<Solver> Solver::make(std::string_view name, Schedule schedule) {
  if (name == "euler") return std::make_unique<Euler>(std::move(schedule));
  if (name != "unipc") {
    fail(ErrorCode::InvalidArgument, "scheduler '{}' is none of {}", name,
         fmt::join(names(), ", "));
  }
  if (schedule.sigmas.front() >= 1) {
    fail(ErrorCode::InvalidArgument,
         "unipc cannot begin at sigma 1; take the grid diffusers or wan");
  }
  return std::make_unique<UniPc>(std::move(schedule));
}

void Solver::step(std::span<const float> velocity, std::span<float> latents) {
  if (done() || velocity.size() != latents.size())
    fail(ErrorCode::Internal, "a step of the solver past its end, or of another size");
  advance(velocity, latents);
  ++index_;
}

void Solver::resume(int index, std::vector<History> history) {
  if (index < 0 || index > schedule_.steps())
    fail(ErrorCode::InvalidArgument, "{} steps are done of {}", index, schedule_.steps());
  index_ = index;
  if (!restore(std::move(history)))
    fail(ErrorCode::InvalidArgument, "the solver's history does not fit {} steps", index);
}

}  // namespace batten::wan
