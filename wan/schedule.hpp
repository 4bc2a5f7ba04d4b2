// Noise levels of a denoising run, and the solvers that walk along them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace batten::wan {

// Sigma grids. Programs differ in them, and their videos with them.
//   diffusers    UniPC in diffusers since January 2026: from 1 to 1/1000, the end left out
//   wan          Wan's own code, and UniPC in older diffusers: from 0.999 to 0, the end left out
//   flow-match   diffusers' FlowMatchEulerDiscreteScheduler: from 1 to the shifted 1/1000
struct Schedule {
  std::string grid;
  double shift = 1;
  std::vector<float> sigmas;     // one more than there are steps; the last is 0
  std::vector<float> timesteps;  // what the model is told: 1000 sigma, whole but in flow-match
  int steps() const noexcept { return static_cast<int>(timesteps.size()); }
};

const std::vector<std::string>& grid_names();

// Throws InvalidArgument for an unknown grid, steps below 1 or above 1000, or a shift that is not
// positive.
Schedule make_schedule(std::string_view grid, int steps, double shift);

// Moves latents from one noise level to the next by the model's velocity, in float32.
class Solver {
 public:
  virtual ~Solver() = default;

  // "unipc" (bh2, order 2) or "euler". Throws InvalidArgument for another name.
  static std::unique_ptr<Solver> make(std::string_view name, Schedule schedule);
  static const std::vector<std::string>& names();

  const Schedule& schedule() const noexcept { return schedule_; }
  // Steps that are done.
  int index() const noexcept { return index_; }
  bool done() const noexcept { return index_ == schedule_.steps(); }

  // `latents` at sigma[index()] become those at sigma[index() + 1].
  void step(std::span<const float> velocity, std::span<float> latents);

  // What must be kept beside the latents to go on after `index()` steps, by name.
  struct History {
    std::string name;
    std::vector<float> values;
  };
  virtual std::vector<History> history() const { return {}; }
  // The counterpart, with what history() gave after `index` steps. Throws InvalidArgument if it
  // does not belong together.
  void resume(int index, std::vector<History> history);

 protected:
  explicit Solver(Schedule schedule) : schedule_(std::move(schedule)) {}

  virtual void advance(std::span<const float> velocity, std::span<float> latents) = 0;
  // Takes over what history() gave; false if it does not fit index().
  virtual bool restore(std::vector<History>&& history) { return history.empty(); }
  int at() const noexcept { return index_; }

 private:
  Schedule schedule_;
  int index_ = 0;
};

}  // namespace batten::wan
