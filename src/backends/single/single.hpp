// `single`: FlashInfer's single-prefill kernel, once for each sample of the batch.
#pragma once

#include <memory>

#include "backends/backend.hpp"

namespace batten::impl {

std::unique_ptr<Backend> make_single();

}  // namespace batten::impl
