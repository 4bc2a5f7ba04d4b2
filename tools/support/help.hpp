// How `--help` looks: CLI11's page, wrapped to 100 columns.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace batten::tools {

class HelpFormatter : public CLI::Formatter {
 public:
  // "Usage: batten attend IN -o OUT [OPTIONS]"
  std::string make_usage(const CLI::App* app, std::string name) const override;
  // The names, the kind of value, what it means and "[default]".
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* verb) const override;
  std::string make_footer(const CLI::App* app) const override;
};

}  // namespace batten::tools
