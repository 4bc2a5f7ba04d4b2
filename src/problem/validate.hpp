// From the caller's structs to the library's own words, with every mistake named before anything
// runs.
#pragma once

#include <batten/batten.h>

#include "problem/problem.hpp"
#include "problem/tensor_check.hpp"

namespace batten::impl {

struct ValidatedProblem {
  Problem problem;
  double scale = 0;  // the default of its calls
};

// InvalidArgument or Unsupported (an unknown mask tag) with one line.
ValidatedProblem validate_problem(const batten_problem& raw);

struct ValidatedCall {
  Shape shape;
  Call call;
  void* workspace = nullptr;  // the caller's, or null
  std::size_t workspace_size = 0;
};

// Checks shapes, dtypes, strides, devices, lengths and offsets against the problem, then
// simplifies: full host lengths are dropped, uniform packed calls become dense, strides of
// dimensions of size one get their contiguous value. O(B) time, no allocation.
ValidatedCall validate_call(const ValidatedProblem& problem, Device device, const batten_call& raw,
                            Pointers pointers);

// Host lengths and offsets of a call (or copies of device ones) against its buffers: not negative,
// not past the end, offsets not decreasing, no sample above max_q or max_kv. `arrays` are read
// where non-null.
void check_lengths(const Shape& shape, const Call& arrays);

}  // namespace batten::impl
