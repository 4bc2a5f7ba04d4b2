// What a call costs with one launch a sample, and which calls are served on a card that need not be
// here. Nothing here needs CUDA.
#pragma once

#include <optional>
#include <string>

#include "backends/backend.hpp"
#include "cost/prediction.hpp"

namespace batten::impl::single {

// Nothing for the sm80 kernel, which divides keys by rules of its own.
std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& problem,
                                        const Shape& shape, const BackendOptions& options);

std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                      const Shape& shape, const BackendOptions& options);

}  // namespace batten::impl::single
