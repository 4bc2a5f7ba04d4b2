// Launches of kernels that wait by themselves for what came before them.
#pragma once

#include <cstddef>

#include "core/device.hpp"

namespace batten::impl::native {

struct LaunchShape {
  int ctas = 0;
  int threads = 0;
  int shared_bytes = 0;
};

// Queues a kernel, `parameter` its only one. With drivers since CUDA 12.3, it may begin while the
// one before it ends: it calls cudaGridDependencySynchronize() before it touches memory (CUDA C++
// Programming Guide, "Programmatic Dependent Launch"). The device is current. Error{Device}, saying
// `what`, when the launch fails.
void launch(const void* function, const LaunchShape& shape, void* parameter, Stream stream,
            const char* what);

}  // namespace batten::impl::native
