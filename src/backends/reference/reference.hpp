// The oracle: attention in float64, in loops that read like the maths.
#pragma once

#include <memory>

#include "backends/backend.hpp"

namespace batten::impl {

// Two independent formulations on the CPU: the softmax of a whole row of scores, and
// "reference:online", which streams over the keys.
std::unique_ptr<Backend> make_reference();

#if BATTEN_WITH_CUDA
// The CUDA twin, in reference_cuda.cu.
Availability reference_cuda_availability(Device device);
std::shared_ptr<const Plan> make_reference_cuda_plan(const Problem& problem, const Shape& shape,
                                                     Device device, const BackendOptions& options);
#endif

}  // namespace batten::impl
