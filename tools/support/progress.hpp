// A progress bar on stderr, drawn only when that is a terminal.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace batten::tools {

class Progress {
 public:
  explicit Progress(std::size_t total);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total are finished, `what` comes next. Redraws at most some times a second.
  void update(std::size_t done, std::string_view what);

  // Takes the bar off the screen, so that a line can be printed; the next update draws it again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::size_t total_;
  bool enabled_;
  bool drawn_ = false;
  Clock::time_point started_ = Clock::now();
  Clock::time_point last_{};
};

}  // namespace batten::tools
