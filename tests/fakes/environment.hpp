// Environment variables for the length of a scope.
#pragma once

#include <stdlib.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace batten::testing {

// Sets a variable, or removes it, and puts back what was there.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::optional<std::string>& value)
      : name_(std::move(name)) {
    if (const char* old = ::getenv(name_.c_str())) previous_ = old;
    put(value);
  }
  ~ScopedVariable() { put(previous_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void put(const std::optional<std::string>& value) const {
    if (value) {
      ::setenv(name_.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }

  std::string name_;
  std::optional<std::string> previous_;
};

// Removes every variable that steers the library, so that a test does not depend on who runs it.
class CleanEnvironment {
 private:
  ScopedVariable backend_{"BATTEN_BACKEND", {}};
  ScopedVariable host_{"FASTVIDEO_ATTENTION_BACKEND", {}};
  ScopedVariable host_prefill_{"FASTVIDEO_FLASHINFER_PREFILL_BACKEND", {}};
  ScopedVariable check_{"BATTEN_CHECK", {}};
  ScopedVariable workspace_{"BATTEN_WORKSPACE_MIB", {}};
  ScopedVariable threads_{"BATTEN_NUM_THREADS", {}};
  ScopedVariable family_{"BATTEN_NATIVE_ARCH", {}};
  ScopedVariable shared_memory_{"BATTEN_SMEM_LIMIT", {}};
  // No card's constants but those that come with batten.
  ScopedVariable cache_{"BATTEN_CACHE_DIR", "/nonexistent"};
};

}  // namespace batten::testing
