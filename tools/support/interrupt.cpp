#include "support/interrupt.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace batten::tools {
namespace {

std::atomic<bool> interrupt_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the signal handler may only touch such");

void on_interrupt(int) {
  interrupt_flag.store(true);
  constexpr char kNotice[] =
      "\nstopping after the current call; press Ctrl-C again to stop at once\n";
  // Nothing can be done in a handler when stderr is closed.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kNotice, sizeof(kNotice) - 1);
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  // RESETHAND: the second Ctrl-C has the default effect. RESTART: no call fails with EINTR.
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() noexcept { return interrupt_flag.load(); }

}  // namespace batten::tools
