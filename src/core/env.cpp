#include "core/env.hpp"

#include <charconv>
#include <cstdlib>

#include "core/error.hpp"

namespace batten::impl {

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<std::int64_t> environment_int(const char* name, std::int64_t min, std::int64_t max) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end || value < min || value > max) {
    fail(ErrorCode::InvalidArgument,
         "environment variable {}={}: expected a whole number from {} to {}", name, *text, min,
         max);
  }
  return value;
}

bool environment_flag(const char* name, bool fallback) {
  const auto text = environment(name);
  if (!text) return fallback;
  for (const char* yes : {"1", "true", "yes", "on"}) {
    if (*text == yes) return true;
  }
  for (const char* no : {"0", "false", "no", "off"}) {
    if (*text == no) return false;
  }
  fail(ErrorCode::InvalidArgument, "environment variable {}={}: expected 1 or 0", name, *text);
}

}  // namespace batten::impl
