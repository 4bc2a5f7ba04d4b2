#include "support/console.hpp"

#include <unistd.h>

#include <array>
#include <batten/types.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace batten::tools {
namespace {

bool has_color(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

std::string_view escape_of(Color color) {
  switch (color) {
    case Color::red:
      return "\033[31m";
    case Color::green:
      return "\033[32m";
    case Color::yellow:
      return "\033[33m";
    case Color::dim:
      return "\033[2m";
    case Color::bold:
      return "\033[1m";
    case Color::none:
      break;
  }
  return "";
}

std::string painted(bool enabled, Color color, std::string_view text) {
  if (!enabled || color == Color::none) return std::string(text);
  return fmt::format("{}{}\033[0m", escape_of(color), text);
}

constexpr std::array<std::pair<std::string_view, int>, 5> kLevels{{
    {"debug", BATTEN_LOG_DEBUG},
    {"info", BATTEN_LOG_INFO},
    {"warning", BATTEN_LOG_WARNING},
    {"error", BATTEN_LOG_ERROR},
    {"off", BATTEN_LOG_OFF},
}};

}  // namespace

bool stdout_has_color() { return has_color(STDOUT_FILENO); }
bool stderr_has_color() { return has_color(STDERR_FILENO); }

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

std::string paint(Color color, std::string_view text) {
  return painted(stdout_has_color(), color, text);
}

std::string one_line(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

bool Console::set_level(std::string_view name) {
  for (const auto& [known, level] : kLevels) {
    if (known != name) continue;
    level_ = level;
    batten_set_log_level(level);
    return true;
  }
  return false;
}

void Console::line(int level, std::string_view label, std::string_view text) const {
  if (level < level_) return;
  const Color color = label == "error"     ? Color::red
                      : label == "warning" ? Color::yellow
                                           : Color::none;
  // One write for the whole line, so that lines of several threads or processes do not mix.
  std::fflush(stdout);
  fmt::print(
      stderr, "{}\n",
      fmt::format("batten{}{}: {} {}", verb_.empty() ? "" : " ", verb_,
                  painted(stderr_has_color(), color, fmt::format("{}:", label)), one_line(text)));
  std::fflush(stderr);
}

void finish_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  const int error = errno;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("cannot write the results to stdout: {}; give it a place with room",
                          error != 0 ? std::generic_category().message(error) : "write failed"));
}

}  // namespace batten::tools
