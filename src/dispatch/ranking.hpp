// `auto`'s order: who serves a call, the fastest by prediction first, and why.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.hpp"

namespace batten::impl {

struct Ranked {
  const Backend* backend = nullptr;
  std::optional<cost::Prediction> prediction;
};

struct Ranking {
  std::vector<Ranked> serving;  // best first
  std::string passed_over;      // "name: reason; ..." of those that do not serve the call
};

// The backend's prediction; where this very call was measured on the card, that time.
std::optional<cost::Prediction> predicted(const Backend& backend, const cost::Card& card,
                                          const Problem& problem, const Shape& shape,
                                          const BackendOptions& options);

// `candidates` in the order of preference, which decides between equal times. Those without a
// prediction come last. `card` is null where times are not predicted: the order stays.
Ranking rank(std::span<const Backend* const> candidates, const Problem& problem, const Shape& shape,
             Device device, const BackendOptions& options, const cost::Card* card);

// Sorts as rank() does.
void sort_by_time(std::vector<Ranked>& ranked);

// "native 44 us, cudnn 54 us (shipped constants)", or "first that serves this call" where the first
// has no prediction.
std::string why_first(std::span<const Ranked> serving);

// "44 us"
std::string time_text(double us);

}  // namespace batten::impl
