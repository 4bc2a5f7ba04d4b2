// What the tests of problems and calls share: validation in one step, and numbers for properties.
#pragma once

#include <rapidcheck.h>

#include <cstdint>

#include "fakes/test_call.hpp"
#include "problem/validate.hpp"

namespace batten::impl {

inline ValidatedCall validated(const testing::TestCall& call,
                               Pointers pointers = Pointers::required) {
  return validate_call(validate_problem(call.problem), call.device, call.raw, pointers);
}

// Evenly from [from, to], whatever RapidCheck's size.
inline std::int64_t any_of(std::int64_t from, std::int64_t to) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::int64_t>(from, to + 1));
}
inline bool any_bool() { return any_of(0, 1) == 0; }

}  // namespace batten::impl
