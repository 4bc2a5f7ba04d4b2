// The `cudnn` backend: one cuDNN SDPA graph call for the whole batch.
#pragma once

#include <memory>

#include "backends/backend.hpp"

namespace batten::impl {

std::unique_ptr<Backend> make_cudnn();

}  // namespace batten::impl
