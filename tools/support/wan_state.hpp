// The file that `batten wan denoise` writes: latents, and what it takes to go on with them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/environment.hpp"
#include "wan/schedule.hpp"

namespace batten::tools {

struct WanState {
  Json run;                         // what makes the run what it is: {"steps": 50, "seed": 0, ...}
  int done = 0;                     // steps
  std::vector<std::int64_t> shape;  // [videos, channels, frames, height, width]
  std::vector<float> latents;
  std::vector<wan::Solver::History> history;  // none once all steps are done

  bool complete() const { return done == run.value("steps", 0); }
};

// Writes all of it, or nothing: tensor `latents` F32, and `resume.*` while steps are left.
void save_state(const std::string& path, const WanState& state);

// The state in a file; nothing if there is no such file. Throws InvalidArgument for a file that
// save_state() did not write.
std::optional<WanState> load_state(const std::string& path);

// Throws InvalidArgument naming what differs, unless `state` is of the run `run`.
void check_same_run(const WanState& state, const Json& run, const std::string& path);

}  // namespace batten::tools
