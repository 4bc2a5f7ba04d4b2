// The table of bad calls: each is a good one with one mistake in it.
#pragma once

#include <batten/types.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fakes/test_call.hpp"

namespace batten::testing {

struct BadProblem {
  const char* name;
  std::function<void(batten_problem&)> spoil;
  std::vector<const char*> fragments;  // of the message: what, where, what to do
  ErrorCode code = ErrorCode::InvalidArgument;
};

// The good calls that mistakes are made in.
enum class Base {
  dense,           // BSHD on the CPU, lse, host lengths of queries and keys
  packed,          // ragged, host offsets, lse
  packed_lengths,  // the same with host lengths that leave gaps
  gpu,             // BSHD on cuda:0, lse, device key lengths
  gpu_packed,      // device offsets and bounds
};
std::unique_ptr<TestCall> good_call(Base base);

struct BadCall {
  const char* name;
  Base base;
  std::function<void(TestCall&)> spoil;
  std::vector<const char*> fragments;
  bool only_forward = false;  // prepare() reads no tensor, so it cannot see the mistake
};

// Each in its own file.
std::vector<BadProblem> bad_problems();
std::vector<BadCall> bad_tensors();  // shapes, dtypes, strides, pointers, devices
std::vector<BadCall> bad_arrays();   // lengths, offsets, bounds, scale, workspace
std::vector<BadCall> bad_overlaps();

}  // namespace batten::testing
