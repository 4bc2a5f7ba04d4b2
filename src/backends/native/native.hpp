// batten's own kernels.
#pragma once

#include <memory>

#include "backends/backend.hpp"

namespace batten::impl {

std::unique_ptr<Backend> make_native();

}  // namespace batten::impl
