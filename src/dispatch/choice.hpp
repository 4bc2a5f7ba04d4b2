// Which backend was asked for, and by whom.
#pragma once

#include <string>

#include "backends/backend.hpp"

namespace batten::impl {

// Order: the option in code, BATTEN_BACKEND, FastVideo's published pair of variables, then "auto".
struct Choice {
  const Backend* backend = nullptr;  // null: auto
  std::string form;                  // "" or one of the backend's forms
  std::string source;  // for the receipt: "option", "BATTEN_BACKEND=cpu", "default", ...
};

// `option` may be null or empty. InvalidArgument listing the legal names for an unknown one.
Choice resolve_choice(const char* option);

}  // namespace batten::impl
