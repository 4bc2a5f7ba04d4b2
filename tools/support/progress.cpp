#include "support/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "support/console.hpp"

namespace batten::tools {
namespace {

constexpr std::size_t kBarWidth = 24;
constexpr std::chrono::milliseconds kRedrawInterval{100};

std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

Progress::Progress(std::size_t total) : total_(total), enabled_(stderr_is_terminal()) {}

void Progress::update(std::size_t done, std::string_view what) {
  if (!enabled_ || total_ == 0) return;
  const Clock::time_point now = Clock::now();
  if (drawn_ && now - last_ < kRedrawInterval) return;
  last_ = now;
  const std::size_t filled = std::min(kBarWidth, kBarWidth * done / total_);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - started_).count();
  std::string line =
      fmt::format("[{:#<{}}{:.<{}}] {}/{} {}:{:02} {}", "", filled, "", kBarWidth - filled, done,
                  total_, seconds / 60, seconds % 60, what);
  // A line that wraps could not be taken back.
  const std::size_t width = terminal_width();
  if (line.size() >= width) line.resize(width - 1);
  fmt::print(stderr, "\r\033[K{}", line);
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace batten::tools
