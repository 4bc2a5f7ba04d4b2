// The state of the library as JSON, for `batten info`, bindings and bug reports.
#pragma once

#include <string>

namespace batten::impl {

// {"batten": {...}, "cuda": {...}, "devices": [...], "backends": [...], "workspace": {...}}
std::string info_json();

}  // namespace batten::impl
