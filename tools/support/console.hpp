// What the command says on stderr, and whether either stream is a terminal. Results go to stdout
// through fmt::print; everything else goes through here.
#pragma once

#include <batten/batten.h>
#include <fmt/format.h>

#include <string>
#include <string_view>

namespace batten::tools {

enum class Color { none, red, green, yellow, dim, bold };

// Whether escape sequences are welcome: a terminal that is not "dumb", and NO_COLOR unset or empty.
bool stdout_has_color();
bool stderr_has_color();
// Whether stderr is a terminal on which a line can be redrawn.
bool stderr_is_terminal();

// `text` in `color` if stdout has colour, else as it is.
std::string paint(Color color, std::string_view text);

// One line: every control character of `text` (line ends too) becomes a space.
std::string one_line(std::string_view text);

// Writes log and error lines, each one line, as "batten <verb>: <level>: <text>".
class Console {
 public:
  explicit Console(std::string verb = {}) : verb_(std::move(verb)) {}

  const std::string& verb() const noexcept { return verb_; }
  void set_verb(std::string verb) { verb_ = std::move(verb); }

  // Sets the level here and in the library. False for a name that is none.
  bool set_level(std::string_view name);

  void error(std::string_view text) const { line(BATTEN_LOG_OFF, "error", text); }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    line(BATTEN_LOG_WARNING, "warning", fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    line(BATTEN_LOG_INFO, "info", fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  void line(int level, std::string_view label, std::string_view text) const;

  std::string verb_;
  int level_ = BATTEN_LOG_WARNING;
};

// Flushes stdout; throws Error when what was printed could not be written (disk full, ...).
void finish_stdout();

}  // namespace batten::tools
