// The environment variables that batten reads (docs/concepts.md), as they are set here.
#pragma once

#include <string>
#include <vector>

#include "support/environment.hpp"

namespace batten::tools {

struct Setting {
  std::string name;
  std::string value;
  std::string problem;  // why it does not do what was meant; "" where it may
};

// Every variable whose name begins with BATTEN_ and that is not empty, by name. Without `info`
// names of backends are not looked at.
std::vector<Setting> settings(const LibraryInfo* info);

// A text that may hold any bytes: those that are no UTF-8 are replaced.
Json json_of(const std::string& text);

// {NAME: value} of those that batten knows.
Json settings_json();

}  // namespace batten::tools
