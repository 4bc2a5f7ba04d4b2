#include "cost/prediction.hpp"

#include <algorithm>
#include <cmath>

namespace batten::impl::cost {
namespace {

std::int64_t divided_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

// Keys that all rows of a sample see together.
double seen_keys(Mask mask, const Lengths& n) {
  const auto queries = static_cast<double>(n.queries);
  const auto keys = static_cast<double>(n.keys);
  if (mask == Mask::none) return queries * keys;
  // Rows 0 ... queries - 1 see `first`, first + 1, ... keys, within [0, keys].
  const double first = mask == Mask::causal ? keys - queries + 1 : 1;
  const double begin = std::max(0.0, 1 - first);        // rows that see none
  const double full = std::max(0.0, keys - first + 1);  // rows before the first that sees all
  const double ramp_end = std::min(queries, full);
  const double ramp = std::max(0.0, ramp_end - begin);
  const double seen_first = first + begin;
  return ramp * seen_first + ramp * (ramp - 1) / 2 + std::max(0.0, queries - ramp_end) * keys;
}

}  // namespace

double power_share(double us) noexcept {
  constexpr double kNone = 500;    // microseconds below which the limit does not act
  constexpr double kAll = 10'000;  // beyond which it acts in full
  if (us <= kNone) return 0;
  return std::min(std::log(us / kNone) / std::log(kAll / kNone), 1.0);
}

Prediction predict(const Card::Entry& entry, const Work& work) {
  const Constants& c = entry.constants;
  Prediction p;
  p.kernel = c.kernel;
  p.head_dim = c.head_dim;
  p.causal = c.causal;
  p.origin = entry.origin;
  p.terms = {Term{"launches", work.launches, c.launch_us}, Term{"tiles", work.starts, c.tile_us},
             Term{"key blocks", work.blocks, c.block_us}, Term{"parts", work.parts, c.part_us},
             Term{"merges", work.merges, c.merge_us}};
  double tiles_us = 0;
  for (const Term& term : std::span(p.terms).subspan(1)) tiles_us += term.us();
  double most = tiles_us;
  const double at_limit = c.tflops > 0 ? work.flops / c.tflops * 1e-6 : 0;
  if (const double share = power_share(tiles_us); at_limit > tiles_us && share > 0) {
    p.power_us = most = tiles_us + share * (at_limit - tiles_us);
    p.bound = "power";
  }
  if (c.gbps > 0) p.memory_us = work.bytes / c.gbps * 1e-3;
  // What is done with parts comes when their keys have arrived.
  const double parts_us = p.terms[3].us() + p.terms[4].us();
  if (p.memory_us + parts_us > most) {
    most = p.memory_us + parts_us;
    p.bound = "memory";
  }
  p.us = p.terms[0].us() + most;
  return p;
}

Lengths lengths_of(const Shape& shape) noexcept {
  Lengths n{.queries = shape.max_q, .keys = shape.max_kv};
  if (shape.packed && shape.batch > 0) {
    n.queries = std::min(n.queries, divided_up(shape.tokens_q, shape.batch));
    n.keys = std::min(n.keys, divided_up(shape.tokens_kv, shape.batch));
  }
  return n;
}

double flops_of(const Problem& problem, const Shape& shape) noexcept {
  return 2.0 * static_cast<double>(shape.batch) * seen_keys(problem.mask, lengths_of(shape)) *
         problem.num_heads * (problem.head_dim + problem.head_dim_v);
}

double bytes_of(const Problem& problem, const Shape& shape) noexcept {
  const Lengths n = lengths_of(shape);
  const double queries = static_cast<double>(n.queries) * problem.num_heads;
  const double keys = static_cast<double>(n.keys) * problem.num_kv_heads;
  const auto in = static_cast<double>(size_of(problem.dtype));
  const auto out = static_cast<double>(size_of(problem.out_dtype));
  return static_cast<double>(shape.batch) *
         (queries * (problem.head_dim * in + problem.head_dim_v * out) +
          keys * (problem.head_dim + problem.head_dim_v) * in);
}

std::int64_t blocks_of_tile(Mask mask, std::int64_t first, std::int64_t rows, const Lengths& n,
                            int block_keys) noexcept {
  const std::int64_t last = std::min(first + rows, n.queries) - 1;
  if (last < first) return 0;
  return divided_up(visible_keys(mask, last, n.queries, n.keys), block_keys);
}

Grid grid_of(Mask mask, const Lengths& n, std::int64_t heads, int tile_rows, int block_keys,
             int multiprocessors) noexcept {
  Grid g;
  const std::int64_t row_tiles = divided_up(n.queries, tile_rows);
  g.tiles = static_cast<double>(row_tiles * heads);
  if (g.tiles == 0) return g;
  const double sms = std::max(multiprocessors, 1);
  g.busiest_starts = std::ceil(g.tiles / sms);
  const double units = static_cast<double>(block_keys) / kUnitKeys;
  if (mask == Mask::none) {
    g.longest = static_cast<double>(divided_up(n.keys, block_keys)) * units;
    g.blocks = g.tiles * g.longest;
    g.busiest_blocks = g.busiest_starts * g.longest;
    return g;
  }
  // The mean tile from a few of them: blocks grow evenly with the row.
  constexpr std::int64_t kSamples = 64;
  const std::int64_t step = divided_up(row_tiles, kSamples);
  double sum = 0;
  double count = 0;
  for (std::int64_t tile = row_tiles - 1; tile >= 0; tile -= step) {
    const std::int64_t blocks = blocks_of_tile(mask, tile * tile_rows, tile_rows, n, block_keys);
    const double seen = static_cast<double>(blocks) * units;
    sum += seen;
    count += 1;
    g.longest = std::max(g.longest, seen);
  }
  const double mean = sum / count;
  g.blocks = mean * g.tiles;
  // Longest first, in turns: what is left over at the end is about half a tile.
  g.busiest_blocks = g.tiles <= sms ? g.longest : std::max(g.longest, g.blocks / sms + mean / 2);
  return g;
}

std::optional<MeasuredShape> measured_shape(const Problem& problem, const Shape& shape) noexcept {
  if (shape.packed || shape.q_lengths != Source::none || shape.kv_lengths != Source::none ||
      problem.head_dim_v != problem.head_dim || problem.out_dtype != problem.dtype) {
    return std::nullopt;
  }
  return MeasuredShape{.dtype = problem.dtype,
                       .mask = problem.mask,
                       .batch = shape.batch,
                       .queries = shape.max_q,
                       .keys = shape.max_kv,
                       .num_heads = problem.num_heads,
                       .num_kv_heads = problem.num_kv_heads,
                       .head_dim = problem.head_dim};
}

}  // namespace batten::impl::cost
