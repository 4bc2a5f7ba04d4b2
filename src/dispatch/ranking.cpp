#include "dispatch/ranking.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace batten::impl {

std::optional<cost::Prediction> predicted(const Backend& backend, const cost::Card& card,
                                          const Problem& problem, const Shape& shape,
                                          const BackendOptions& options) {
  auto prediction = backend.predict(card, problem, shape, options);
  if (!options.form.empty()) return prediction;
  const auto call = cost::measured_shape(problem, shape);
  const cost::Measured* measured = call ? card.find_measured(*call) : nullptr;
  const auto us = measured != nullptr ? measured->of(backend.name()) : std::nullopt;
  if (!us || (prediction && !prediction->usual)) return prediction;
  if (!prediction) prediction.emplace();
  prediction->us = *us;
  prediction->exact = true;
  return prediction;
}

void sort_by_time(std::vector<Ranked>& ranked) {
  std::ranges::stable_sort(ranked, [](const Ranked& a, const Ranked& b) {
    if (!a.prediction || !b.prediction) return a.prediction && !b.prediction;
    return a.prediction->us < b.prediction->us;
  });
}

Ranking rank(std::span<const Backend* const> candidates, const Problem& problem, const Shape& shape,
             Device device, const BackendOptions& options, const cost::Card* card) {
  Ranking ranking;
  for (const Backend* backend : candidates) {
    if (const auto reason = backend->why_not(problem, shape, device, options)) {
      if (!ranking.passed_over.empty()) ranking.passed_over += "; ";
      ranking.passed_over += fmt::format("{}: {}", backend->name(), *reason);
      continue;
    }
    ranking.serving.push_back({backend, card != nullptr
                                            ? predicted(*backend, *card, problem, shape, options)
                                            : std::nullopt});
  }
  sort_by_time(ranking.serving);
  return ranking;
}

std::string time_text(double us) {
  if (us < 9.95) return fmt::format("{:.1f} us", us);
  return fmt::format("{} us", static_cast<std::int64_t>(std::lround(us)));  // faster than {:.0f}
}

std::string why_first(std::span<const Ranked> serving) {
  if (serving.empty() || !serving.front().prediction) return "first that serves this call";
  fmt::memory_buffer text;
  bool exact = true;
  cost::Origin worst = cost::Origin::measured;
  for (const Ranked& r : serving) {
    if (!r.prediction) continue;
    fmt::format_to(std::back_inserter(text), "{}{} {}", text.size() == 0 ? "" : ", ",
                   r.backend->name(), time_text(r.prediction->us));
    exact = exact && r.prediction->exact;
    if (!r.prediction->exact) worst = std::max(worst, r.prediction->origin);
  }
  if (exact) {
    fmt::format_to(std::back_inserter(text), " (measured)");
  } else {
    fmt::format_to(std::back_inserter(text), " ({} constants)", name_of(worst));
  }
  return fmt::to_string(text);
}

}  // namespace batten::impl
