// What a call costs on the native kernels, and which calls they serve on a card that need not be
// here. Nothing here needs CUDA.
#pragma once

#include <optional>
#include <string>

#include "backends/backend.hpp"
#include "backends/native/target.hpp"
#include "cost/prediction.hpp"

namespace batten::impl::native {

// `problem`: without a mask that hides nothing (without_idle_mask()).
cost::Work work_of(const Target& target, const Problem& problem, const Shape& shape,
                   const BackendOptions& options);

std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& problem,
                                        const Shape& shape, const BackendOptions& options);

std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                      const Shape& shape, const BackendOptions& options);

}  // namespace batten::impl::native
