// The command's verbs. Each adds its subcommand and says how to run it.
#pragma once

#include <functional>
#include <vector>

#include "support/console.hpp"

namespace CLI {
class App;
}

namespace batten::tools {

struct Verb {
  CLI::App* app = nullptr;
  // Runs the parsed command and returns its exit code; throws UsageError, Error or Interrupted.
  std::function<int(const Console&)> run;
  // A group's verbs; it is then they that run.
  std::vector<Verb> verbs = {};
};

Verb add_info(CLI::App& parent);
Verb add_attend(CLI::App& parent);
Verb add_verify(CLI::App& parent);
Verb add_bench(CLI::App& parent);
Verb add_explain(CLI::App& parent);
Verb add_tune(CLI::App& parent);
// Of the group `wan`.
Verb add_wan_denoise(CLI::App& parent);
Verb add_wan_bench(CLI::App& parent);

}  // namespace batten::tools
