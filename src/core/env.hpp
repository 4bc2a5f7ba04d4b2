// Environment variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace batten::impl {

// The variable's value; nothing when it is unset or empty.
std::optional<std::string> environment(const char* name);

// A whole number in [min, max]. InvalidArgument naming the variable, its value and the range
// otherwise. Nothing when unset.
std::optional<std::int64_t> environment_int(const char* name, std::int64_t min, std::int64_t max);

// "1", "true", "yes", "on" and their opposites; InvalidArgument otherwise. `fallback` when unset.
bool environment_flag(const char* name, bool fallback);

}  // namespace batten::impl
