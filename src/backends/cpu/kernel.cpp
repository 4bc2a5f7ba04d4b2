// The attention of one block of query rows, compiled once per SIMD target.
#include "backends/cpu/block.hpp"

// Arrays of vectors need vectors of a size known at compile time.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
// Without vectors nothing here makes sense, and Highway's emulation of them trips GCC 12's bug
// 106322. availability() answers for CPUs that lack what the least target needs: x86 from before
// 2006, and aarch64 without the AES instructions that Highway counts to NEON.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSSE3
#elif defined(__aarch64__)
#define HWY_BASELINE_TARGETS HWY_NEON
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernel.cpp"
#include <hwy/foreach_target.h>

#include <type_traits>

// Highway's headers come after foreach_target.h.
#include <hwy/highway.h>

#include "backends/cpu/product-inl.hpp"
#include "backends/cpu/softmax-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace batten::impl::cpu::HWY_NAMESPACE {
namespace {

// Some of a block's rows: those that fill kMaxVectors vectors.
struct Panel {
  std::int64_t first = 0;  // row within the block
  std::int64_t rows = 0;   // rows that attend
  int vectors = 0;
};

// The number of keys that stacked row `row` of the block sees.
std::int64_t visible_of(const Block& block, std::int64_t row) {
  return visible_keys(block.mask, (block.first_row + row) / block.group, block.q_length,
                      block.kv_length);
}

template <class Math, int kVectors>
void attend_panel(const Block& block, const Scratch& s, const Exponential& exponential,
                  const Panel& panel, Keys k, std::int64_t first_key, std::int64_t tile_keys,
                  NextTile& next) {
  // Later rows see no fewer keys.
  const std::int64_t most = visible_of(block, panel.first + panel.rows - 1);
  const std::int64_t least = visible_of(block, panel.first);
  const std::int64_t keys = std::min(tile_keys, most - first_key);
  if (keys <= 0) return;
  const bool masked = keys % kRows != 0 || least < first_key + keys;

  HWY_ALIGN float new_maximum[kMaxPanelRows];
  HWY_ALIGN float rescale[kMaxPanelRows];
  float* maximum = s.maximum + panel.first;
  std::copy_n(maximum, kVectors * kLanes, new_maximum);

  const std::int64_t rounded = (keys + kRows - 1) / kRows * kRows;
  const std::int64_t dim = block.head_dim / Math::kPack;
  const float* queries = s.q + panel.first * dim;
  if (masked) {
    HWY_ALIGN float visible[kMaxPanelRows];
    HWY_ALIGN float ignored[kMaxPanelRows];
    std::copy_n(maximum, kVectors * kLanes, ignored);
    for (std::int64_t lane = 0; lane < kVectors * kLanes; ++lane) {
      const std::int64_t row = panel.first + std::min(lane, panel.rows - 1);
      const std::int64_t seen = visible_of(block, row) - first_key;
      visible[lane] = static_cast<float>(std::clamp<std::int64_t>(seen, 0, keys));
    }
    multiply_keys<Math, kVectors>(k, dim, rounded, queries, s.scores, ignored);
    mask_scores<kVectors>(s.scores, keys, visible, new_maximum);
  } else {
    multiply_keys<Math, kVectors>(k, dim, rounded, queries, s.scores, new_maximum);
  }
  softmax<Math, kVectors>(exponential, s.scores, keys, new_maximum, maximum, s.sum + panel.first,
                          rescale);
  const std::int64_t steps = (keys + Math::kPack - 1) / Math::kPack;
  multiply_values<Math, kVectors>(s.v, block.head_dim_v, steps, s.scores, first_key == 0, rescale,
                                  s.out + panel.first * block.head_dim_v, next);
}

template <class Math>
void attend_panel(const Block& block, const Scratch& s, const Exponential& exponential,
                  const Panel& panel, Keys k, std::int64_t first_key, std::int64_t tile_keys,
                  NextTile& next) {
  switch (panel.vectors) {
    case 1:
      return attend_panel<Math, 1>(block, s, exponential, panel, k, first_key, tile_keys, next);
    case 2:
      return attend_panel<Math, 2>(block, s, exponential, panel, k, first_key, tile_keys, next);
    default:
      return attend_panel<Math, 3>(block, s, exponential, panel, k, first_key, tile_keys, next);
  }
}

// Elements as the products want them: fp32, or pairs of bf16.
template <class Math, class In>
using ElementOf = std::conditional_t<Math::kPack == 2, const Pair, const In>;

template <class Math, class In>
Rows<ElementOf<Math, In>> rows_of(const void* first, std::int64_t row, std::int64_t head) {
  return {.first = static_cast<ElementOf<Math, In>*>(first),
          .row_stride = row / Math::kPack,
          .head_stride = head / Math::kPack};
}

// The keys of a tile: where they lie, if they are stored as elements and fill the product's rows.
template <class Math, class In>
Keys keys_of_tile(const Block& block, const Scratch& s, std::int64_t first_key,
                  std::int64_t tile_keys) {
  const auto k = rows_of<Math, In>(block.k, block.k_row, 0);
  if constexpr (sizeof(*k.first) == sizeof(float)) {
    if (tile_keys % kRows == 0) {
      return {.first = reinterpret_cast<const float*>(k.at(first_key)), .stride = k.row_stride};
    }
  }
  const std::int64_t dim = block.head_dim / Math::kPack;
  pack_keys(k, dim, first_key, tile_keys, kRows, s.k);
  return {.first = s.k, .stride = dim};
}

template <class Math, class In>
void pack_tile_values(const Block& block, const Scratch& s, std::int64_t first_key,
                      std::int64_t tile_keys) {
  const Rows<const In> v = {.first = static_cast<const In*>(block.v), .row_stride = block.v_row};
  if constexpr (Math::kPack == 2) {
    pack_value_pairs<kRows>(v, block.head_dim_v, first_key, tile_keys, s.v);
  } else {
    pack_values<kRows>(v, block.head_dim_v, first_key, tile_keys, s.v);
  }
}

// The tile that begins at `first_key`, for a block of `panels` panels.
template <class In>
NextTile next_tile(const Block& block, std::int64_t first_key, std::int64_t keys, int panels) {
  NextTile next;
  next.rows = std::clamp<std::int64_t>(keys - first_key, 0, kKeyTile);
  if (next.rows == 0) return next;
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(In));
  next.k =
      reinterpret_cast<const std::byte*>(static_cast<const In*>(block.k) + first_key * block.k_row);
  next.v =
      reinterpret_cast<const std::byte*>(static_cast<const In*>(block.v) + first_key * block.v_row);
  next.k_stride = block.k_row * kBytes;
  next.v_stride = block.v_row * kBytes;
  next.k_bytes = block.head_dim * kBytes;
  next.v_bytes = block.head_dim_v * kBytes;
  const std::int64_t steps = panels * (block.head_dim_v / kRows);
  next.rows_per_step = (next.rows + steps - 1) / steps;
  return next;
}

// Panels of nearly equal width: 4 vectors are 2 + 2, since a product of 3 + 1 loads more.
struct Panels {
  Panel at[kMaxBlockRows / kLanes];
  int count = 0;

  explicit Panels(std::int64_t rows) {
    const std::int64_t vectors = (rows + kLanes - 1) / kLanes;
    count = static_cast<int>((vectors + kMaxVectors - 1) / kMaxVectors);
    std::int64_t first = 0;
    for (int p = 0; p < count; ++p) {
      const auto width = static_cast<int>((vectors - first + count - p - 1) / (count - p));
      at[p] = {.first = first * kLanes,
               .rows = std::min(rows - first * kLanes, width * kLanes),
               .vectors = width};
      first += width;
    }
  }
  std::int64_t lanes() const { return at[count - 1].first + at[count - 1].vectors * kLanes; }
  const Panel* begin() const { return at; }
  const Panel* end() const { return at + count; }
};

// The rows of the vector that begins at `lane` of a panel. Lanes past the panel's rows get `spare`,
// or without one the last row again.
template <class T>
LaneRows<T> rows_of_lanes(const Block& block, Rows<T> rows, const Panel& panel, std::int64_t lane,
                          T* spare) {
  LaneRows<T> result;
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const std::int64_t last = std::min(lane + i, panel.rows - 1);
    const bool past = lane + i > last && spare != nullptr;
    result.at[i] = past ? spare : rows.stacked(block.first_row + panel.first + last, block.group);
  }
  return result;
}

// Calls function(panel, lane, rows) for each vector of the panels, while the next one's rows are
// fetched.
template <class T, class Function>
void for_each_vector(const Block& block, const Panels& panels, Rows<T> rows, std::int64_t dim,
                     T* spare, Function function) {
  LaneRows<T> next = rows_of_lanes(block, rows, panels.at[0], 0, spare);
  for (int p = 0; p < panels.count; ++p) {
    const Panel& panel = panels.at[p];
    for (std::int64_t lane = 0; lane < panel.rows; lane += kLanes) {
      const LaneRows<T> now = next;
      if (lane + kLanes < panel.rows) {
        next = rows_of_lanes(block, rows, panel, lane + kLanes, spare);
        prefetch_rows(next, dim);
      } else if (p + 1 < panels.count) {
        next = rows_of_lanes(block, rows, panels.at[p + 1], 0, spare);
        prefetch_rows(next, dim);
      }
      function(panel, lane, now);
    }
  }
}

template <class Math, class In>
void pack_panels(const Block& block, const Scratch& s, const Panels& panels) {
  using Element = ElementOf<Math, In>;
  const float factor = Exponential::query_factor(block.scale);
  const std::int64_t dim = block.head_dim / Math::kPack;
  const Rows<Element> q = rows_of<Math, In>(block.q, block.q_row, block.q_head);
  for_each_vector<Element>(
      block, panels, q, dim, nullptr, [&](const Panel& panel, std::int64_t lane, const auto& rows) {
        pack_queries(rows, dim, factor, s.q + panel.first * dim + lane, panel.vectors * kLanes);
      });
}

template <class Out>
Rows<Out> output_rows(const Block& block) {
  return {.first = static_cast<Out*>(block.out),
          .row_stride = block.out_row,
          .head_stride = block.out_head};
}

template <class Out>
void unpack_panels(const Block& block, const Scratch& s, const Panels& panels) {
  const std::int64_t dim = block.head_dim_v;
  for_each_vector<Out>(block, panels, output_rows<Out>(block), dim, reinterpret_cast<Out*>(s.spare),
                       [&](const Panel& panel, std::int64_t lane, const auto& rows) {
                         unpack_output(s.out + panel.first * dim + lane, panel.vectors * kLanes,
                                       dim, s.sum + panel.first + lane, rows);
                       });
}

template <class Out>
void write_zeros(const Block& block, std::int64_t begin, std::int64_t end) {
  const Rows<Out> rows = output_rows<Out>(block);
  for (std::int64_t r = block.first_row + begin; r < block.first_row + end; ++r) {
    Out* row = rows.stacked(r, block.group);
    std::fill_n(reinterpret_cast<unsigned char*>(row),
                static_cast<std::size_t>(block.head_dim_v) * sizeof(Out),
                static_cast<unsigned char>(0));
  }
}

// Natural logarithm of the sum of exp(logit): -inf where a row saw nothing.
void write_lse(const Block& block, const Scratch& s, std::int64_t active) {
  if (block.lse == nullptr) return;
  const double scale = SplitScale(block.scale).rest;
  const Rows<float> rows = {
      .first = block.lse, .row_stride = block.lse_row, .head_stride = block.lse_head};
  for (std::int64_t r = 0; r < block.num_rows; ++r) {
    float* lse = rows.stacked(block.first_row + r, block.group);
    if (r >= active || s.sum[r] == 0) {
      *lse = -kInfinity;
    } else {
      const double maximum = static_cast<double>(s.maximum[r]);
      *lse = static_cast<float>(maximum * scale + std::log(static_cast<double>(s.sum[r])));
    }
  }
}

template <class Math, class In, class Out>
void attend_block(const Block& block, const Scratch& s) {
  const std::int64_t active =
      std::clamp<std::int64_t>(block.q_length * block.group - block.first_row, 0, block.num_rows);
  const std::int64_t keys = active == 0 ? 0 : visible_of(block, active - 1);
  if (keys == 0) {
    write_zeros<Out>(block, 0, block.num_rows);
    write_lse(block, s, 0);
    return;
  }

  const Panels panels(active);
  const Exponential exponential(block.scale);
  std::fill_n(s.maximum, panels.lanes(), -kInfinity);
  std::fill_n(s.sum, panels.lanes(), 0.0f);
  pack_panels<Math, In>(block, s, panels);

  for (std::int64_t first_key = 0; first_key < keys; first_key += kKeyTile) {
    const std::int64_t tile_keys = std::min(kKeyTile, keys - first_key);
    const Keys k = keys_of_tile<Math, In>(block, s, first_key, tile_keys);
    pack_tile_values<Math, In>(block, s, first_key, tile_keys);
    NextTile next = next_tile<In>(block, first_key + kKeyTile, keys, panels.count);
    for (const Panel& panel : panels) {
      attend_panel<Math>(block, s, exponential, panel, k, first_key, tile_keys, next);
    }
  }

  unpack_panels<Out>(block, s, panels);
  write_zeros<Out>(block, active, block.num_rows);
  write_lse(block, s, active);
}

template <class Math, class In>
void attend_as(const Block& block, const Scratch& s) {
  if (block.out_dtype == DType::f32) return attend_block<Math, In, float>(block, s);
  attend_block<Math, In, In>(block, s);
}

void attend(const Block& block, void* scratch) {
  Scratch s;
  Scratch::carve(s, scratch, block.head_dim, block.head_dim_v, block.num_rows);
  switch (block.dtype) {
    case DType::f16:
      return attend_as<Fp32, hwy::float16_t>(block, s);
    case DType::bf16:
      return attend_as<Fp32, hwy::bfloat16_t>(block, s);
    default:
      return attend_block<Fp32, float, float>(block, s);
  }
}

#if BATTEN_CPU_HAS_BF16_DOT
// Pairs must be 32-bit words in memory, and of queries only the sign can be changed.
bool can_pair(const Block& block) {
  const auto address =
      reinterpret_cast<std::uintptr_t>(block.q) | reinterpret_cast<std::uintptr_t>(block.k);
  const std::int64_t strides = block.q_row | block.q_head | block.k_row;
  return address % sizeof(Pair) == 0 && strides % Bf16Dot::kPack == 0 &&
         std::fabs(Exponential::query_factor(block.scale)) == 1;
}

void attend_bf16_dot(const Block& block, void* scratch) {
  if (block.dtype != DType::bf16 || !can_pair(block)) return attend(block, scratch);
  Scratch s;
  Scratch::carve(s, scratch, block.head_dim, block.head_dim_v, block.num_rows);
  attend_as<Bf16Dot, hwy::bfloat16_t>(block, s);
}
#endif

}  // namespace

const Kernel* kernel_of_target() {
  static const Kernel kernel = {
    .target = hwy::TargetName(HWY_TARGET),
    .lanes = static_cast<int>(kLanes),
    .panel_rows = static_cast<int>(kMaxVectors * kLanes),
    .attend = attend,
#if BATTEN_CPU_HAS_BF16_DOT
    .attend_bf16_dot = attend_bf16_dot
  };
#else
    .attend_bf16_dot = nullptr
  };
#endif
  return &kernel;
}

}  // namespace batten::impl::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace batten::impl::cpu {

HWY_EXPORT(kernel_of_target);

const Kernel& best_kernel() {
  // The choice is made here and not by the first call, so that tests may narrow it at any time.
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return *HWY_DYNAMIC_DISPATCH(kernel_of_target)();
}

DotOfPairs bf16_dot() {
#if defined(__x86_64__)
  if (best_kernel().attend_bf16_dot == nullptr || !__builtin_cpu_supports("avx512bf16")) {
    return DotOfPairs::missing;
  }
  return __builtin_cpu_is("amd") ? DotOfPairs::fast : DotOfPairs::slow;
#else
  return DotOfPairs::missing;
#endif
}

Availability availability() {
  if ((hwy::SupportedTargets() & HWY_TARGETS) != 0) {
    return {.available = true, .reason = {}, .remedy = {}, .library = {}};
  }
  return {.available = false,
          .reason = HWY_ARCH_X86 ? "this CPU lacks SSSE3" : "this CPU lacks NEON with AES",
          .remedy = "use `reference`",
          .library = {}};
}

std::size_t scratch_size(int head_dim, int head_dim_v, std::int64_t rows) {
  Scratch ignored = {};
  return Scratch::carve(ignored, nullptr, head_dim, head_dim_v, rows);
}

}  // namespace batten::impl::cpu
#endif
