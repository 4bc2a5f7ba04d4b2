// Sigma grids and solvers against diffusers' schedulers.
#include "wan/schedule.hpp"

#include <gtest/gtest.h>

#include <batten/types.hpp>
#include <cmath>

#include "wan/golden.hpp"

namespace batten::wan {
namespace {

const io::SafetensorsFile& golden() {
  static const auto file = io::SafetensorsFile::open(golden_folder() + "/schedules.safetensors");
  return file;
}

void expect_schedule(const std::string& name, const Schedule& schedule) {
  const std::vector<float> sigmas = floats_of(golden().at(name + ".sigmas"));
  const std::vector<float> timesteps = floats_of(golden().at(name + ".timesteps"));
  ASSERT_EQ(schedule.sigmas.size(), sigmas.size()) << name;
  ASSERT_EQ(schedule.timesteps.size(), timesteps.size()) << name;
  for (std::size_t i = 0; i < sigmas.size(); ++i)
    EXPECT_NEAR(schedule.sigmas[i], sigmas[i], 1e-7) << name << " " << i;
  for (std::size_t i = 0; i < timesteps.size(); ++i)
    EXPECT_NEAR(schedule.timesteps[i], timesteps[i], schedule.grid == "flow-match" ? 1e-4 : 0)
        << name << " " << i;
}

struct Walk {
  const char* scheduler;
  const char* grid;
  double shift;
};
const Walk kWalks[] = {{"unipc", "diffusers", 3},
                       {"unipc", "diffusers", 5},
                       {"unipc", "diffusers", 1},
                       {"euler", "flow-match", 3},
                       {"euler", "flow-match", 1}};

std::string name_of(const Walk& run, int steps) {
  return std::string(run.scheduler) + ".shift" + std::to_string(static_cast<int>(run.shift)) +
         ".steps" + std::to_string(steps);
}

TEST(Schedule, GridsAreThoseOfDiffusersAndWan) {
  for (const Walk& run : kWalks)
    for (const int steps : {1, 2, 4, 6, 50})
      expect_schedule(name_of(run, steps), make_schedule(run.grid, steps, run.shift));
  expect_schedule("wan.shift5.steps4", make_schedule("wan", 4, 5));
  expect_schedule("wan.shift3.steps50", make_schedule("wan", 50, 3));
}

// The stand-in for the model in scripts/make_wan_golden.py; rows of four.
std::vector<float> velocity_of(const std::vector<float>& x, float t) {
  std::vector<float> v(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    v[i] = std::tanh(1.3F * x[i]) + 0.4F * std::cos(x[i / 4 * 4 + 3 - i % 4] + t / 300.0F);
  return v;
}

void expect_trace(const Walk& run, int steps) {
  const auto solver = Solver::make(run.scheduler, make_schedule(run.grid, steps, run.shift));
  const std::vector<float> trace = floats_of(golden().at(name_of(run, steps) + ".trace"));
  std::vector<float> x = floats_of(golden().at("start"));
  for (int i = 0; i < steps; ++i) {
    solver->step(velocity_of(x, solver->schedule().timesteps[static_cast<std::size_t>(i)]), x);
    for (std::size_t n = 0; n < x.size(); ++n)
      ASSERT_NEAR(x[n], trace[static_cast<std::size_t>(i) * x.size() + n], 2e-5)
          << name_of(run, steps) << " step " << i << " element " << n;
  }
  EXPECT_TRUE(solver->done());
}

TEST(Solver, TracesAreThoseOfDiffusers) {
  for (const Walk& run : kWalks)
    for (const int steps : {1, 2, 4, 6}) expect_trace(run, steps);
}

// Stopping after any step and going on gives the same bits.
TEST(Solver, ResumesWhereItStopped) {
  for (const char* name : {"unipc", "euler"}) {
    const Schedule schedule = make_schedule("wan", 6, 3);
    std::vector<float> whole = floats_of(golden().at("start"));
    const auto solver = Solver::make(name, schedule);
    for (const float t : schedule.timesteps) solver->step(velocity_of(whole, t), whole);
    for (int stop = 0; stop <= 6; ++stop) {
      std::vector<float> x = floats_of(golden().at("start"));
      const auto first = Solver::make(name, schedule);
      for (int i = 0; i < stop; ++i)
        first->step(velocity_of(x, schedule.timesteps[static_cast<std::size_t>(i)]), x);
      const auto second = Solver::make(name, schedule);
      second->resume(stop, first->history());
      for (int i = stop; i < 6; ++i)
        second->step(velocity_of(x, schedule.timesteps[static_cast<std::size_t>(i)]), x);
      EXPECT_EQ(x, whole) << name << " stopped after " << stop;
    }
  }
}

TEST(Solver, RefusesAHistoryOfAnotherRun) {
  const Schedule schedule = make_schedule("diffusers", 4, 3);
  const auto solver = Solver::make("unipc", schedule);
  EXPECT_THROW(solver->resume(2, {}), Error);
  EXPECT_THROW(solver->resume(5, {}), Error);
  EXPECT_THROW(solver->resume(1, {{"corrected", {1}}, {"prediction", {1, 2}}}), Error);
  EXPECT_THROW(Solver::make("euler", schedule)->resume(1, {{"corrected", {1}}}), Error);
}

TEST(Schedule, RefusesWhatMakesNoSense) {
  EXPECT_THROW(make_schedule("diffusers", 0, 3), Error);
  EXPECT_THROW(make_schedule("diffusers", 1001, 3), Error);
  EXPECT_THROW(make_schedule("diffusers", 10, 0), Error);
  EXPECT_THROW(make_schedule("diffusers", 10, NAN), Error);
  EXPECT_THROW(make_schedule("karras", 10, 3), Error);
  EXPECT_THROW(Solver::make("dpm", make_schedule("wan", 4, 3)), Error);
  EXPECT_THROW(Solver::make("unipc", make_schedule("flow-match", 4, 3)), Error);
}

}  // namespace
}  // namespace batten::wan
