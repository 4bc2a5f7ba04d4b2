#include "cost/card.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace batten::impl::cost {
namespace {

// How a block of keys grows with the head dim: the products in proportion, softmax not at all.
double block_scale(int head_dim) { return 0.35 + 0.65 * head_dim / 128.0; }

Constants scaled_to(Constants c, int head_dim) {
  c.block_us *= block_scale(head_dim) / block_scale(c.head_dim);
  const double ratio = static_cast<double>(head_dim) / c.head_dim;
  c.part_us *= ratio;
  c.merge_us *= ratio;
  c.head_dim = head_dim;
  return c;
}

}  // namespace

const char* name_of(Origin origin) noexcept {
  switch (origin) {
    case Origin::measured:
      return "measured";
    case Origin::shipped:
      return "shipped";
    case Origin::estimated:
      break;
  }
  return "estimated";
}

std::string kernel_name(std::string_view kernel, int head_dim, bool causal) {
  return fmt::format("{} d{}{}", kernel, head_dim, causal ? " causal" : "");
}

std::optional<double> Measured::of(std::string_view backend) const {
  for (const auto& [name, time] : us) {
    if (name == backend) return time;
  }
  return std::nullopt;
}

void Card::set(const Constants& constants, Origin origin) {
  for (Entry& entry : entries_) {
    const Constants& c = entry.constants;
    if (c.kernel == constants.kernel && c.head_dim == constants.head_dim &&
        c.causal == constants.causal) {
      entry = {constants, origin};
      return;
    }
  }
  entries_.push_back({constants, origin});
}

std::optional<Card::Entry> Card::find(std::string_view kernel, int head_dim, bool causal) const {
  const Entry* best = nullptr;
  // The same mask first, then the nearest head dim, the larger one of two.
  const auto distance = [&](const Entry& e) {
    const int apart = e.constants.head_dim - head_dim;
    return (e.constants.causal == causal ? 0 : 1 << 20) + 2 * std::abs(apart) + (apart < 0 ? 1 : 0);
  };
  for (const Entry& entry : entries_) {
    if (entry.constants.kernel != kernel) continue;
    if (best == nullptr || distance(entry) < distance(*best)) best = &entry;
  }
  if (best == nullptr) return std::nullopt;
  if (distance(*best) == 0) return *best;
  Entry estimate{scaled_to(best->constants, head_dim), Origin::estimated};
  estimate.constants.causal = causal;
  return estimate;
}

const Measured* Card::find_measured(const MeasuredShape& shape) const noexcept {
  const auto found =
      std::ranges::find_if(measured_, [&](const Measured& m) { return m.shape == shape; });
  return found == measured_.end() ? nullptr : &*found;
}

}  // namespace batten::impl::cost
