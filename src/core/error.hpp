// Raising batten::Error with a formatted message, and keeping messages to one line.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <batten/types.hpp>
#include <string>
#include <utility>

namespace batten {

// Throws Error{code, fmt::format(...)}.
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

namespace impl {

// Control characters, line ends among them, become spaces: names from the outside and messages of
// other libraries may hold any.
inline std::string one_line(std::string text) {
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  std::replace_if(text.begin(), text.end(), control, ' ');
  return text;
}

}  // namespace impl
}  // namespace batten
