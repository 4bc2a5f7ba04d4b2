#include "support/help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace batten::tools {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kColumn = 28;  // where descriptions begin

// A name and its description, which is wrapped beside it.
std::string entry(const std::string& name, std::string_view text) {
  std::string out = "  " + name;
  std::size_t at = out.size();
  if (at + 2 > kColumn) {
    out += '\n';
    at = 0;
  }
  out.append(kColumn - at, ' ');
  at = kColumn;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    if (at > kColumn && at + 1 + word.size() > kWidth) {
      out += '\n';
      out.append(kColumn, ' ');
      at = kColumn;
    } else if (at > kColumn) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  return out + '\n';
}

// "-o, --output OUT"
std::string name_of(const CLI::Option* option) {
  std::string text;
  const auto add = [&](std::string_view dashes, const std::string& name) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", dashes, name);
  };
  for (const std::string& name : option->get_snames()) add("-", name);
  for (const std::string& name : option->get_lnames()) add("--", name);
  if (option->get_items_expected_max() > 0 && !option->get_type_name().empty())
    text += " " + option->get_type_name();
  return text;
}

// " [256 1024]" of CLI11's "[256,1024]"; "" where there is no default.
std::string default_of(const CLI::Option* option) {
  std::string text = option->get_default_str();
  if (text.empty() || option->get_items_expected_max() == 0) return "";
  std::erase_if(text, [](char c) { return c == '[' || c == ']'; });
  std::replace(text.begin(), text.end(), ',', ' ');
  return fmt::format(" [{}]", text);
}

}  // namespace

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string text = "Usage: " + name;
  for (const CLI::Option* option : app->get_options()) {
    if (!option->get_required()) continue;
    if (option->get_positional()) {
      text += " " + option->get_name(true);
    } else {
      const bool brief = !option->get_snames().empty();
      text += fmt::format(" {}{} {}", brief ? "-" : "--",
                          brief ? option->get_snames().front() : option->get_lnames().front(),
                          option->get_type_name());
    }
  }
  text += app->get_subcommands({}).empty() ? " [OPTIONS]" : " VERB [OPTIONS]";
  return text + "\n";
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  const std::string name = is_positional ? option->get_name(true) : name_of(option);
  return entry(name, option->get_description() + default_of(option));
}

std::string HelpFormatter::make_subcommand(const CLI::App* verb) const {
  return entry(verb->get_name(), verb->get_description());
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  return app->get_footer() + "\n";
}

}  // namespace batten::tools
