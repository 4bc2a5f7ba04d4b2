// What a call costs through cuDNN, and which calls it serves on a card that need not be here. Needs
// no cuDNN and no CUDA.
#pragma once

#include <optional>
#include <string>

#include "backends/backend.hpp"
#include "cost/prediction.hpp"

namespace batten::impl::cudnn {

// The version that is assumed where the library cannot be asked.
inline constexpr std::size_t kAssumedVersion = 91900;

std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& problem,
                                        const Shape& shape, const BackendOptions& options);

std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                      const Shape& shape, const BackendOptions& options);

}  // namespace batten::impl::cudnn
