// Threads that must meet. A test that waits for a meeting fails rather than hangs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace batten::testing {

class Meeting {
 public:
  explicit Meeting(int expected) : expected_(expected) {}

  // Waits until all that are expected have arrived; false where they do not come in time.
  bool arrive_and_wait(std::chrono::milliseconds patience = std::chrono::seconds(30)) {
    std::unique_lock lock(mutex_);
    ++arrived_;
    all_.notify_all();
    return all_.wait_for(lock, patience, [&] { return arrived_ >= expected_; });
  }
  void arrive() {
    const std::lock_guard lock(mutex_);
    ++arrived_;
    all_.notify_all();
  }
  bool wait(std::chrono::milliseconds patience = std::chrono::seconds(30)) {
    std::unique_lock lock(mutex_);
    return all_.wait_for(lock, patience, [&] { return arrived_ >= expected_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  int expected_;
  int arrived_ = 0;
};

}  // namespace batten::testing
