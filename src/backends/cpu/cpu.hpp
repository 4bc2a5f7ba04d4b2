// Attention on the CPU: tiled online softmax with SIMD, on all cores.
#pragma once

#include <memory>

#include "backends/backend.hpp"

namespace batten::impl {

// Head dims that are multiples of 8 up to 256. Bits of a sample's result depend on nothing but the
// sample and the SIMD target: not on the batch, not on the threads.
std::unique_ptr<Backend> make_cpu();

}  // namespace batten::impl
