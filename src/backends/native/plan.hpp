#pragma once

#include <memory>

#include "backends/backend.hpp"

namespace batten::impl::native {

std::shared_ptr<const Plan> make_plan(const Problem& problem, const Shape& shape, Device device,
                                      const BackendOptions& options);

}  // namespace batten::impl::native
