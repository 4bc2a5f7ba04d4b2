#include "backends/native/rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "backends/native/division.hpp"

namespace batten::impl::native {
namespace {

// Limits of a tensor map: strides in bytes stay below, and so do products of sizes that the kernels
// keep in 32 bits.
constexpr std::int64_t kStrideLimit = std::int64_t{1} << 40;
constexpr std::int64_t kTileLimit = std::int64_t{1} << 30;
// Rows are counted in 31 bits, up to the end of the last tile or block.
constexpr std::int64_t kRowLimit = (std::int64_t{1} << 31) - 256;

constexpr int kNarrow = 128;
constexpr int kWide = 144;
constexpr int kNarrowest = 80;  // what head dim 256 has room for
// Up to here the last block's waste decides the width; from there on a wide block's fewer steps.
constexpr std::int64_t kMostKeysForFit = 1024;
constexpr std::int64_t kLeastKeysForWide = 8192;

std::int64_t rounded_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

int narrow(const Problem& problem) { return problem.head_dim <= 128 ? kNarrow : kNarrowest; }

// At most.
std::int64_t row_tiles(const Shape& shape) {
  return rounded_up(shape.max_q, kTileRows) / kTileRows;
}

// Tiles whose redone ones a launch tells apart.
std::int64_t told_apart(int ctas) { return std::int64_t{kRedoBits} * ctas; }

// Whether the tiles that are taken one by one are counted by the rows that there are, and not by
// max_q. Not where that would let a sample's neighbours decide whether its tiles are told apart.
bool counts_rows(const Problem& problem, const Shape& shape, int ctas) {
  const bool always_apart = row_tiles(shape) * problem.num_heads <= told_apart(ctas);
  return shape.packed && (always_apart || !problem.batch_invariant);
}

bool may_differ_in_length(const Shape& shape) {
  return shape.packed || shape.q_lengths != Source::none || shape.kv_lengths != Source::none;
}

bool has_wide(const Problem& problem) {
  return problem.head_dim == 128 && problem.mask == Mask::none;
}

std::optional<std::string> why_not_layout(const char* name, const Layout& layout,
                                          std::int64_t batch, std::int64_t rows,
                                          std::int64_t element) {
  if (rows > 1 && layout.row == 0) {
    return fmt::format("{}: rows that all lie at one address (stride 0) cannot be described to TMA",
                       name);
  }
  for (const std::int64_t stride :
       {batch > 1 ? layout.batch : 0, rows > 1 ? layout.row : 0, layout.head}) {
    if (stride * element >= kStrideLimit) {
      return fmt::format("{}: TMA's strides end at 2^40 bytes, this one is {}", name,
                         stride * element);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_not_elements(const Problem& problem) {
  if (problem.dtype != DType::f16 && problem.dtype != DType::bf16) {
    return fmt::format("its kernels take float16 and bfloat16, not {}", name_of(problem.dtype));
  }
  if (problem.head_dim != problem.head_dim_v) {
    return fmt::format("its kernels are compiled for equal head dims, not {} and {}",
                       problem.head_dim, problem.head_dim_v);
  }
  return std::nullopt;
}

std::optional<std::string> why_not_counts(const Problem& problem, const Shape& shape) {
  if (std::max(shape.max_q, shape.max_kv) > kRowLimit) {
    return fmt::format("its rows are counted in 31 bits, not {}",
                       std::max(shape.max_q, shape.max_kv));
  }
  if (row_tiles(shape) * shape.batch * problem.num_heads >= kTileLimit) {
    return "its tiles are counted in 30 bits";
  }
  return std::nullopt;
}

std::optional<std::string> why_not(const Problem& problem) {
  if (auto reason = why_not_elements(problem)) return reason;
  constexpr int kHeadDims[] = {64, 96, 128, 256};
  if (std::ranges::find(kHeadDims, problem.head_dim) == std::end(kHeadDims)) {
    return fmt::format("its kernels are compiled for head_dim {}, not {}",
                       fmt::join(kHeadDims, ", "), problem.head_dim);
  }
  return std::nullopt;
}

std::optional<std::string> why_not(const Problem& problem, const Shape& shape) {
  const auto element = static_cast<std::int64_t>(size_of(problem.dtype));
  const struct {
    const char* name;
    const Layout& layout;
    std::int64_t rows;
  } tensors[] = {{"q", shape.q, shape.packed ? shape.tokens_q : shape.max_q},
                 {"k", shape.k, shape.packed ? shape.tokens_kv : shape.max_kv},
                 {"v", shape.v, shape.packed ? shape.tokens_kv : shape.max_kv},
                 {"out", shape.out, shape.packed ? shape.tokens_q : shape.max_q}};
  for (const auto& t : tensors) {
    if (auto reason = why_not_layout(t.name, t.layout, shape.batch, t.rows, element)) return reason;
  }
  return why_not_counts(problem, shape);
}

Shape plan_key(const Shape& shape) {
  Shape key;
  key.batch = shape.batch;
  key.max_q = shape.max_q;
  key.max_kv = shape.max_kv;
  key.packed = shape.packed;
  key.q_lengths = shape.q_lengths;
  key.kv_lengths = shape.kv_lengths;
  return key;
}

std::int64_t samples_of_launch(const Problem& problem, const Shape& shape, int ctas) {
  std::int64_t samples = shape.batch;
  const std::int64_t arrays = std::ranges::count(
      std::array{shape.q_lengths, shape.kv_lengths, shape.offsets_q, shape.offsets_kv},
      Source::host);
  if (arrays > 0) samples = std::min(samples, kHostNumbers / arrays - 1);
  const std::int64_t tiles = row_tiles(shape) * problem.num_heads;
  std::int64_t fitting = tiles > 0 ? told_apart(ctas) / tiles : samples;
  if (counts_rows(problem, shape, ctas)) {  // as most_tiles() does
    fitting = std::max(fitting, told_apart(ctas) / problem.num_heads - shape.tokens_q / kTileRows);
  }
  samples = std::min(samples, fitting);
  if (may_differ_in_length(shape)) samples = std::min<std::int64_t>(samples, kMostOrdered);
  return std::max<std::int64_t>(samples, 1);
}

std::int64_t most_tiles(const Problem& problem, const Shape& shape, std::int64_t samples) {
  std::int64_t rows = samples * row_tiles(shape);
  // Each sample has a tile that is not full, at most.
  if (shape.packed) rows = std::min(rows, shape.tokens_q / kTileRows + samples);
  return rows * problem.num_heads;
}

bool takes_tiles(const Problem& problem, const Shape& shape, int ctas) {
  const std::int64_t samples = std::min(shape.batch, samples_of_launch(problem, shape, ctas));
  const std::int64_t in_rounds = samples * row_tiles(shape) * problem.num_heads;
  const std::int64_t taken =
      counts_rows(problem, shape, ctas) ? most_tiles(problem, shape, samples) : in_rounds;
  return may_differ_in_length(shape) && in_rounds > ctas && taken <= told_apart(ctas);
}

std::vector<std::string> forms() {
  return {kOnline, fmt::format("128x{}", kNarrow), fmt::format("128x{}", kWide), kWhole, kDivided,
          kJoined};
}

bool names_tile(const std::string& form) {
  return !form.empty() && form != kOnline && form != kWhole && form != kDivided && form != kJoined;
}

std::optional<std::string> why_not_form(const Problem& problem, const std::string& form) {
  if (!names_tile(form)) return std::nullopt;
  std::vector<std::string> widths{fmt::format("128x{}", narrow(problem))};
  if (has_wide(problem)) widths.push_back(fmt::format("128x{}", kWide));
  if (std::ranges::find(widths, form) != widths.end()) return std::nullopt;
  return fmt::format("tile {} is not compiled for this problem, but {}", form,
                     fmt::join(widths, " and "));
}

std::optional<std::string> why_not_divided(const Problem& problem, const Shape& shape) {
  if (problem.mask != Mask::none) return "tiles are divided where no mask hides keys";
  if (may_differ_in_length(shape))
    return "tiles are divided where all samples have the same lengths";
  if (problem.batch_invariant) return "how tiles are divided depends on the whole batch";
  return std::nullopt;
}

Problem without_idle_mask(const Problem& problem, const Shape& shape) {
  Problem same = problem;
  const bool lengths = shape.q_lengths != Source::none || shape.kv_lengths != Source::none;
  // A sample's last query sees all of its keys.
  if (problem.mask == Mask::causal && shape.max_q == 1 && !shape.packed && !lengths) {
    same.mask = Mask::none;
  }
  return same;
}

int block_keys(const Problem& problem, const Shape& shape, const std::string& form, int ctas) {
  if (!has_wide(problem)) return narrow(problem);
  if (form == fmt::format("128x{}", kWide)) return kWide;
  if (form == fmt::format("128x{}", kNarrow)) return kNarrow;
  if (form == kJoined) return kJoinedKeys;
  // The width by the longest sample would make a sample's bits depend on the others.
  if (problem.batch_invariant) return kNarrow;
  if (shape.max_kv > kMostKeysForFit) {
    // Few tiles are divided, and what joins parts is narrow.
    const bool few = !may_differ_in_length(shape) && shape.batch * problem.num_kv_heads <= ctas &&
                     tiles_of(problem, shape, kNarrow).tiles <= ctas;
    return few || shape.max_kv < kLeastKeysForWide ? kNarrow : kWide;
  }
  return rounded_up(shape.max_kv, kWide) < rounded_up(shape.max_kv, kNarrow) ? kWide : kNarrow;
}

namespace {

// How evenly the causal order of schedule.cuh spreads blocks over CTAs: the mean CTA's work as a
// fraction of the busiest one's. A tile costs as much as its blocks and one more.
double balance(int row_tiles, int heads, int ctas, int section) {
  constexpr std::int64_t kEnough = 1 << 16;  // tiles; longer orders repeat themselves
  std::vector<std::int64_t> load(static_cast<std::size_t>(ctas));
  std::int64_t tile = 0;
  std::int64_t total = 0;
  for (int head = 0; head < heads && tile < kEnough; head += section) {
    const int width = std::min(section, heads - head);
    for (int level = 0; level < row_tiles; ++level) {
      for (int i = 0; i < width; ++i, ++tile) {
        const auto round = tile / ctas;
        const auto place = tile % ctas;
        const auto cta = static_cast<std::size_t>(round % 2 == 0 ? place : ctas - 1 - place);
        load[cta] += row_tiles - level + 1;
        total += row_tiles - level + 1;
      }
    }
  }
  return static_cast<double>(total) / (static_cast<double>(*std::ranges::max_element(load)) * ctas);
}

}  // namespace

int section_heads(int row_tiles, int heads, int ctas, std::int64_t head_bytes) {
  // What the L2 cache holds; but when it holds few heads, those that eight CTAs at a time share.
  const auto fitting = kCachedBytes / std::max<std::int64_t>(head_bytes, 1);
  const auto most =
      static_cast<int>(std::clamp<std::int64_t>(fitting, std::clamp(ctas / 8, 1, heads), heads));
  constexpr int kCandidates = 16;
  int best = most;
  double best_balance = 0;
  for (int i = 0; i < kCandidates; ++i) {
    const int candidate = most - i * (most - most / 4) / kCandidates;
    const double b = balance(row_tiles, heads, ctas, candidate);
    if (b > best_balance) {
      best_balance = b;
      best = candidate;
    }
  }
  return best;
}

}  // namespace batten::impl::native
