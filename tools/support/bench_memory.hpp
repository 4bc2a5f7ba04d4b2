// Whether the tensors of a benchmark fit, before any is made.
#pragma once

#include <vector>

#include "support/bench_case.hpp"

namespace batten::tools {

// Throws Error{OutOfMemory} for the largest case that has no room on the device, or on the host,
// which holds one tensor on its way to a GPU and, with --check, the call in fp32.
void check_memory(const BenchOptions& options, const std::vector<BenchCase>& cases, Device device);

}  // namespace batten::tools
