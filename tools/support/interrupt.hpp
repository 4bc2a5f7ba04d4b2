// Ctrl-C: the first one asks the verb to stop after the current call and to save what it has; the
// second one ends the process at once.
#pragma once

#include <stdexcept>

namespace batten::tools {

void install_interrupt_handler();
bool interrupted() noexcept;

// Unwinds a verb that has nothing to save; the process then exits with 130.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

inline void throw_if_interrupted() {
  if (interrupted()) throw Interrupted();
}

}  // namespace batten::tools
