#include "backends/native/division.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "backends/native/rules.hpp"
#include "core/env.hpp"

namespace batten::impl::native {
namespace {

// A call is divided when it gains so much.
constexpr double kWorthIt = 0.98;

// Kernels count units in 31 bits, and a period's units times its shares.
constexpr std::int64_t kMostUnits = std::int64_t{1} << 30;
constexpr std::int64_t kMostUnitsTimesShares = std::int64_t{1} << 30;
// Of the workspace's cap, MiB if the environment has no other.
constexpr double kMostOfCap = 0.75;
constexpr std::int64_t kDefaultCap = 128;
// Of all tiles, whatever the scratch: rows of parts are counted in 31 bits.
constexpr double kMostParts = 1 << 20;
// No head has less than this many rows of a tile that several heads share: copies of fewer rows
// take as long.
constexpr int kFewestBoxRowsLog2 = 3;

int divided_up(std::int64_t n, std::int64_t by) { return static_cast<int>((n + by - 1) / by); }

}  // namespace

Division tiles_of(const Problem& problem, const Shape& shape, int keys_of_block) {
  Division d;
  const int group = problem.num_heads / problem.num_kv_heads;
  d.rows = static_cast<std::int32_t>(shape.max_q);
  d.keys = static_cast<std::int32_t>(shape.max_kv);
  d.group = group;
  if (group > 1 && shape.max_q <= kTileRows / 2) {
    const int rows = static_cast<int>(std::bit_ceil(static_cast<unsigned>(shape.max_q)));
    d.box_log2 = std::max(std::countr_zero(static_cast<unsigned>(rows)), kFewestBoxRowsLog2);
    d.heads_of_tile = std::min(group, kTileRows >> d.box_log2);
  }
  const int row_tiles = divided_up(shape.max_q, kTileRows);
  const std::int64_t key_heads = shape.batch * problem.num_kv_heads;
  d.row_tiles = Divisor(static_cast<std::uint32_t>(row_tiles));
  d.key_heads = Divisor(static_cast<std::uint32_t>(key_heads));
  d.key_heads_of_sample = Divisor(static_cast<std::uint32_t>(problem.num_kv_heads));
  d.heads_of_sample = Divisor(static_cast<std::uint32_t>(problem.num_heads));
  d.tiles = static_cast<std::int32_t>(key_heads * divided_up(group, d.heads_of_tile) * row_tiles);
  d.blocks = divided_up(shape.max_kv, keys_of_block);
  return d;
}

namespace {

// Turns that the busiest CTA takes at so many tiles or shares. In the last one CTAs may have their
// multiprocessors for themselves.
double rounds_of(std::int64_t count, const Workers& w) {
  const std::int64_t full = count / w.ctas;
  const std::int64_t left = count - full * w.ctas;
  const double last = left == 0 ? 0 : left <= w.multiprocessors ? w.alone : 1;
  return static_cast<double>(full) + last;
}

// What shares make of the tiles, after rounds of whole ones. A share that does not begin with a
// tile has parts of two, or of more.
Load load_of(const Division& d, int shares, const Workers& w) {
  const double units = static_cast<double>(d.tiles) * d.blocks;
  const double rounds = rounds_of(shares, w);
  const bool even = shares % d.tiles == 0;
  const double tiles_of_share = static_cast<double>(d.tiles) / shares;
  const double parts_of_share = even ? 1 : std::ceil(tiles_of_share) + 1;
  const double whole_rounds = static_cast<double>(d.whole) / w.ctas;
  return {.starts = whole_rounds + rounds * parts_of_share,
          .blocks = whole_rounds * d.blocks + rounds * std::ceil(units / shares),
          .launches = d.whole > 0 ? 2.0 : 1.0,
          .parts_of_cta = rounds * parts_of_share,
          .parts = static_cast<double>(even ? shares : d.tiles + shares - 1)};
}

// The same where parts are joined. One launch does all, and a CTA has one share.
Load joined_load_of(const Division& d, int shares, const Workers& w) {
  Load load = load_of(d, shares, w);
  load.launches = 1;
  load.joined = std::ceil(static_cast<double>(shares) / d.tiles);
  if (shares % d.tiles == 0) load.joined -= 1;
  return load;
}

// `step`: of the kernel's own key blocks; `memory`: for the keys and values to arrive.
double steps(const Load& load, double step, double memory, const Workers& w) {
  const bool begins_at_once = w.can_join && (load.parts == 0 || load.joined > 0);
  if (load.joined > 0) step *= w.join_step;
  double all = std::max(step * load.blocks, memory) +
               (begins_at_once ? w.join_start : w.start) * (load.starts - 1);
  if (load.joined > 0) {
    return all + w.join + w.join_next * (load.joined - 1);
  }
  all += w.launch * (load.launches - 1);
  if (load.parts > 0) all += w.combine + w.part_read * load.parts;
  return all;
}

}  // namespace

DivisionChoice choose_division(const Problem& problem, const Shape& shape, const std::string& form,
                               int keys_of_block, const Workers& w) {
  const std::int64_t whole_tiles =
      shape.batch * problem.num_heads * divided_up(shape.max_q, kTileRows);
  const double rounds = rounds_of(whole_tiles, w);
  DivisionChoice whole;
  whole.load.launches = 1;
  whole.load.starts = rounds;
  whole.load.blocks = rounds * divided_up(shape.max_kv, keys_of_block);
  if (form == kWhole || why_not_divided(problem, shape) || whole_tiles == 0 || shape.max_kv == 0) {
    return whole;
  }

  const double step = static_cast<double>(keys_of_block) * problem.head_dim / (128 * 128);
  const bool forced = form == kDivided || form == kJoined;
  const double key_bytes = 2.0 * static_cast<double>(size_of(problem.dtype)) *
                           static_cast<double>(shape.batch * problem.num_kv_heads) *
                           static_cast<double>(shape.max_kv * problem.head_dim);
  const double memory = key_bytes / w.step_bytes;
  const double most_scratch =
      kMostOfCap * 1024 * 1024 *
      static_cast<double>(
          environment_int("BATTEN_WORKSPACE_MIB", 1, 1 << 20).value_or(kDefaultCap));
  DivisionChoice best = whole;
  const auto consider_one = [&](const Division& tiles, int shares, int periods, bool joins) {
    if (form == (joins ? kDivided : kJoined)) return;
    const std::int64_t all_units = std::int64_t{tiles.tiles} * tiles.blocks;
    const std::int64_t units = all_units / periods;
    if (units * shares > kMostUnitsTimesShares || all_units > kMostUnits) return;
    const Load load =
        joins ? joined_load_of(tiles, shares * periods, w) : load_of(tiles, shares * periods, w);
    if (joins && (load.joined == 0 || shares * periods > w.ctas)) return;
    const double scratch = load.parts * kTileRows * (problem.head_dim + 1) * sizeof(float);
    if (load.parts > kMostParts || (scratch > most_scratch && !forced)) return;
    const bool first = !best.division.divides();
    if (steps(load, step, memory, w) >=
            steps(best.load, step, memory, w) * (first ? kWorthIt : 1) &&
        !(forced && first))
      return;
    best.load = load;
    best.joins = joins;
    best.division = tiles;
    best.division.shares = Divisor(static_cast<std::uint32_t>(shares));
    best.division.units = Divisor(static_cast<std::uint32_t>(units));
    best.division.periods = periods;
  };
  const auto consider = [&](const Division& tiles, int shares, int periods) {
    consider_one(tiles, shares, periods, false);
    if (w.can_join) consider_one(tiles, shares, periods, true);
  };
  // As many shares as CTAs at a time; or as many for each tile, so that no share has two.
  const auto consider_both = [&](const Division& tiles) {
    consider(tiles, std::clamp(w.ctas / tiles.tiles, 1, tiles.blocks), tiles.tiles);
    // CTAs that have several tiles each, of which many have the same keys, read those at different
    // times; whole rounds read them together. (With a tile each or less they are close enough.)
    const bool apart =
        tiles.whole == 0 && tiles.tiles > w.ctas && tiles.tiles > 2 * tiles.key_heads.value();
    if (apart && key_bytes > w.cache_bytes) return;
    const std::int64_t units = std::int64_t{tiles.tiles} * tiles.blocks;
    consider(tiles, static_cast<int>(std::min<std::int64_t>(w.ctas, units)), 1);
  };
  const Division all = tiles_of(problem, shape, keys_of_block);
  const std::int64_t left = whole_tiles % w.ctas;
  if (left > 0 && left < whole_tiles && all.box_log2 == kTileRowsLog2) {
    Division last = all;
    last.tiles = static_cast<std::int32_t>(left);
    last.whole = static_cast<std::int32_t>(whole_tiles - left);
    consider_both(last);
  }
  consider_both(all);
  return best;
}

std::size_t part_output_bytes(const Division& division, int head_dim) {
  return std::size_t{kTileRows} * static_cast<std::size_t>(division.parts()) *
         static_cast<std::size_t>(head_dim) * sizeof(float);
}

JoinBytes join_bytes(const Division& division, int head_dim) {
  const std::size_t rows = std::size_t{kTileRows} * static_cast<std::size_t>(division.all_shares());
  constexpr std::size_t kThreadsOfRow = 4;  // each has its logarithm
  constexpr std::size_t kWarpRows = 16;
  return {.parts = rows * static_cast<std::size_t>(head_dim) * sizeof(float),
          .logs = rows * kThreadsOfRow * sizeof(float),
          .states = rows / kWarpRows * sizeof(std::uint64_t)};
}

std::size_t part_lse_bytes(const Division& division) {
  return std::size_t{kTileRows} * static_cast<std::size_t>(division.parts()) * sizeof(float);
}

}  // namespace batten::impl::native
