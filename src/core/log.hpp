// Logging: one line a message, to stderr or to the embedder's callback.
#pragma once

#include <batten/batten.h>
#include <fmt/format.h>

#include <string>
#include <utility>

namespace batten::impl {

// Whether a message of this level would be written; check before formatting on a hot path.
bool log_enabled(batten_log_level level) noexcept;

void log_line(batten_log_level level, const std::string& message) noexcept;

void set_log_callback(batten_log_callback callback, void* user) noexcept;

// Levels outside the enumeration are clamped to it.
void set_log_level(int level) noexcept;

template <class... Args>
void log(batten_log_level level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace batten::impl
