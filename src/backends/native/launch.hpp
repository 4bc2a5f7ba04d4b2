// Launches of kernels, some of which wait by themselves for what came before them.
#pragma once

#include <cstddef>

#include "core/device.hpp"

namespace batten::impl::native {

struct LaunchShape {
  int ctas = 0;
  int threads = 0;
  int shared_bytes = 0;
  // The kernel was compiled for Hopper and calls cudaGridDependencySynchronize() before it touches
  // memory: with drivers since CUDA 12.3, it may begin while the one before it ends (CUDA C++
  // Programming Guide, "Programmatic Dependent Launch").
  bool overlaps = false;
};

// Queues a kernel, `parameter` its only one. The device is current. Error{Device}, saying `what`,
// when the launch fails.
void launch(const void* function, const LaunchShape& shape, void* parameter, Stream stream,
            const char* what);

}  // namespace batten::impl::native
