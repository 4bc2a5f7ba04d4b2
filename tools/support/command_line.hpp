// How a verb was called, for the record.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace batten::tools {

// "batten wan bench", of a verb in a group of verbs.
std::string verb_name(const CLI::App& app);

// "batten bench --batch-size 4 8 --no-causal": what was given, by the options' long names.
std::string command_line(const CLI::App& app);

}  // namespace batten::tools
