// Tests that need a GPU skip without one, unless the machine is said to have one.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "subject.hpp"

namespace batten::conformance {

// With BATTEN_REQUIRE_GPU set a test that cannot run fails: a machine whose driver broke must not
// look like one that passed.
inline bool gpu_required() { return std::getenv("BATTEN_REQUIRE_GPU") != nullptr; }

}  // namespace batten::conformance

#define SKIP_WITH_REASON(reason)                                   \
  do {                                                             \
    if (::batten::conformance::gpu_required()) FAIL() << (reason); \
    GTEST_SKIP() << (reason);                                      \
  } while (false)

#define SKIP_UNLESS_AVAILABLE(backend, device)                                        \
  do {                                                                                \
    if (const auto why = ::batten::conformance::why_unavailable((backend), (device))) \
      SKIP_WITH_REASON(*why);                                                         \
  } while (false)
