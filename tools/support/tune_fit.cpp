#include "support/tune_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "support/statistics.hpp"

namespace batten::tools {
namespace {

// A memory call counts as bound by memory when the tiles alone explain no more than this of it.
constexpr double kMemoryBound = 0.9;
// A costs call is left out when its bytes alone take this much of it.
constexpr double kNearMemory = 0.8;

// Solves the normal equations for the columns of `chosen`; false where they depend on each other.
bool solve(std::span<const std::vector<double>> rows, const std::vector<std::size_t>& chosen,
           std::vector<double>& x) {
  const std::size_t n = chosen.size();
  std::vector<std::vector<double>> a(n, std::vector<double>(n + 1));
  for (const std::vector<double>& row : rows) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) a[i][j] += row[chosen[i]] * row[chosen[j]];
      a[i][n] += row[chosen[i]];
    }
  }
  std::vector<double> scale(n);
  for (std::size_t i = 0; i < n; ++i) scale[i] = a[i][i];
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t pivot = i;
    for (std::size_t j = i + 1; j < n; ++j) {
      if (std::abs(a[j][i]) > std::abs(a[pivot][i])) pivot = j;
    }
    std::swap(a[i], a[pivot]);
    if (!(std::abs(a[i][i]) > 1e-9 * *std::ranges::max_element(scale))) return false;
    for (std::size_t j = 0; j < n; ++j) {
      if (j == i) continue;
      const double factor = a[j][i] / a[i][i];
      for (std::size_t k = i; k <= n; ++k) a[j][k] -= factor * a[i][k];
    }
  }
  for (std::size_t i = 0; i < n; ++i) x[chosen[i]] = a[i][n] / a[i][i];
  return true;
}

double residual(std::span<const std::vector<double>> rows, const std::vector<double>& x) {
  double sum = 0;
  for (const std::vector<double>& row : rows) {
    double value = -1;
    for (std::size_t i = 0; i < x.size(); ++i) value += row[i] * x[i];
    sum += value * value;
  }
  return sum;
}

// Of a kernel that is bound by memory throughout: launches, and bytes.
cost::Constants fit_bytes(std::span<const TuneSample> samples) {
  std::vector<std::vector<double>> rows;
  for (const TuneSample& s : samples)
    rows.push_back({s.work.launches / s.measured_us, s.work.bytes / s.measured_us});
  const std::vector<double> x = least_squares(rows);
  cost::Constants c;
  c.launch_us = x[0];
  c.gbps = x[1] > 0 ? 1e-3 / x[1] : 0;
  return c;
}

// `gbps` is the memory's speed, or 0: calls that it may bind tell nothing of tiles.
cost::Constants fit_tiles(std::span<const TuneSample> samples, double gbps) {
  std::vector<std::vector<double>> rows;
  for (const TuneSample& s : samples) {
    if (s.call.purpose != Purpose::costs) continue;
    if (gbps > 0 && s.work.bytes / gbps * 1e-3 > kNearMemory * s.measured_us) continue;
    const cost::Work& w = s.work;
    std::vector<double> row{w.launches, w.starts, w.blocks, w.parts, w.merges};
    for (double& value : row) value /= s.measured_us;
    rows.push_back(std::move(row));
  }
  const std::vector<double> x = least_squares(rows);
  cost::Constants c;
  c.launch_us = x[0];
  c.tile_us = x[1];
  c.block_us = x[2];
  c.part_us = x[3];
  c.merge_us = x[4];
  return c;
}

bool tells_of_costs(const TuneSample& sample) { return sample.call.purpose == Purpose::costs; }

double time_of(const cost::Constants& constants, const cost::Work& work) {
  return cost::predict({constants, cost::Origin::measured}, work).us;
}

// The speed under the power limit that explains a long call, or 0 where the tiles alone do.
double sustained_tflops(const TuneSample& s, const cost::Constants& tiles) {
  const double tiles_us = time_of(tiles, s.work) - s.work.launches * tiles.launch_us;
  const double excess = s.measured_us - s.work.launches * tiles.launch_us - tiles_us;
  const double share = cost::power_share(tiles_us);
  if (excess <= 0 || share <= 0) return 0;
  return s.work.flops / (tiles_us + excess / share) * 1e-6;
}

}  // namespace

std::vector<double> least_squares(std::span<const std::vector<double>> rows) {
  const std::size_t n = rows.empty() ? 0 : rows.front().size();
  std::vector<double> best(n);
  double best_residual = std::numeric_limits<double>::infinity();
  // Few columns: every set of those that are not 0 is tried. The best without a negative one is the
  // answer.
  for (std::size_t set = 0; set < std::size_t{1} << n; ++set) {
    std::vector<std::size_t> chosen;
    for (std::size_t i = 0; i < n; ++i) {
      if ((set >> i & 1) != 0) chosen.push_back(i);
    }
    std::vector<double> x(n);
    if (!solve(rows, chosen, x)) continue;
    if (std::ranges::any_of(x, [](double value) { return value < 0; })) continue;
    const double r = residual(rows, x);
    if (r < best_residual) {
      best_residual = r;
      best = x;
    }
  }
  return best;
}

std::optional<Fit> fit(std::span<const TuneSample> samples, double gbps) {
  if (std::ranges::none_of(samples, tells_of_costs)) return std::nullopt;
  const bool has_blocks =
      std::ranges::any_of(samples, [](const TuneSample& s) { return s.work.blocks > 0; });
  Fit f;
  f.constants = has_blocks ? fit_tiles(samples, gbps) : fit_bytes(samples);
  cost::Constants& c = f.constants;
  const TuneCall& call = samples.front().call;
  c.kernel = call.kernel;
  c.head_dim = call.head_dim;
  c.causal = call.causal();
  const cost::Constants tiles = c;
  for (const TuneSample& s : samples) {
    if (s.call.purpose == Purpose::power) c.tflops = sustained_tflops(s, tiles);
    // What no arrival hides, as in cost::predict().
    const double beside_us =
        s.work.launches * c.launch_us + s.work.parts * c.part_us + s.work.merges * c.merge_us;
    if (s.call.purpose == Purpose::memory && beside_us < s.measured_us &&
        time_of(tiles, s.work) < kMemoryBound * s.measured_us)
      c.gbps = s.work.bytes / (s.measured_us - beside_us) * 1e-3;
  }
  if (has_blocks && c.gbps == 0) c.gbps = gbps;
  std::vector<double> errors;
  for (const TuneSample& s : samples) {
    f.fitted_us.push_back(time_of(c, s.work));
    errors.push_back(std::abs(f.fitted_us.back() / s.measured_us - 1));
  }
  f.median_error = median(errors);
  f.worst_error = *std::ranges::max_element(errors);
  return f;
}

}  // namespace batten::tools
