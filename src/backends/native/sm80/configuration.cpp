#include "backends/native/sm80/configuration.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace batten::impl::native::sm80 {

std::string Configuration::tile() const { return fmt::format("{}x{}", kTileRows, block_keys); }

std::string Configuration::str(int limit) const {
  const int n = ctas(limit);
  return fmt::format("{}, {} warps, {} CTA{}", tile(), warps, n, n == 1 ? "" : "s");
}

std::vector<int> head_dims() {
  std::vector<int> dims;
  for (const Configuration& c : kConfigurations) {
    if (std::ranges::find(dims, c.head_dim) == dims.end()) dims.push_back(c.head_dim);
  }
  return dims;
}

Configuration choose(int head_dim, int limit) {
  Configuration best;
  int most = 0;
  for (const Configuration& c : kConfigurations) {
    const int warps = c.head_dim == head_dim ? c.warps * c.ctas(limit) : 0;
    if (warps > most) {
      best = c;
      most = warps;
    }
  }
  return best;
}

}  // namespace batten::impl::native::sm80
