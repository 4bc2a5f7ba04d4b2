#include "support/command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <vector>

namespace batten::tools {

std::string verb_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent != nullptr ? verb_name(*parent) + " " + app.get_name() : app.get_name();
}

std::string command_line(const CLI::App& app) {
  std::string text = verb_name(app);
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::vector<std::string>& values = option->results();
    if (option->get_expected_min() == 0) {  // a flag; --no-... gives "false"
      const bool negative = values.back() == "false";
      text += fmt::format(" --{}{}", negative ? "no-" : "", option->get_lnames().front());
    } else {
      text += fmt::format(" --{} {}", option->get_lnames().front(), fmt::join(values, " "));
    }
  }
  return text;
}

}  // namespace batten::tools
