#include "backends/single/cost.hpp"

#include <fmt/format.h>

#include "backends/single/items.hpp"
#include "backends/single/path.hpp"

namespace batten::impl::single {
namespace {

struct Tile {
  int rows, keys;
};

// FlashInfer's for sm90.
Tile tile_of(int head_dim, bool causal) {
  if (head_dim <= 64) return {192, 128};
  if (head_dim <= 128) return {128, causal ? 128 : 192};
  return {128, 64};
}

bool is_compiled(int head_dim) {
  return head_dim == 128 || (BATTEN_SINGLE_ALL != 0 && (head_dim == 64 || head_dim == 256));
}

}  // namespace

std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& problem,
                                        const Shape& shape, const BackendOptions& /*options*/) {
  if (path_of(problem, shape, card.properties().arch) != Path::sm90) return std::nullopt;
  const auto constants = card.find("single", problem.head_dim, problem.mask != Mask::none);
  if (!constants) return std::nullopt;
  cost::Work work;
  work.flops = cost::flops_of(problem, shape);
  work.bytes = cost::bytes_of(problem, shape);
  const cost::Lengths lengths = cost::lengths_of(shape);
  const auto samples = static_cast<double>(shape.batch);
  work.launches = 0;
  for (const Item& item :
       plan_items(problem.mask, lengths.queries, lengths.keys, lengths.queries)) {
    if (item.keys == 0) continue;
    const Tile tile = tile_of(problem.head_dim, item.causal);
    const cost::Grid grid =
        cost::grid_of(item.causal ? Mask::causal : Mask::none, {item.rows, item.keys},
                      problem.num_heads, tile.rows, tile.keys, card.properties().multiprocessors);
    work.launches += samples;
    work.starts += samples * grid.busiest_starts;
    work.blocks += samples * grid.busiest_blocks;
  }
  return cost::predict(*constants, work);
}

std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                      const Shape& shape, const BackendOptions& /*options*/) {
  const int arch = card.properties().arch;
  if (arch < 80) return fmt::format("its kernels need sm80 or newer, not sm{}", arch);
  if (problem.dtype != DType::f16 && problem.dtype != DType::bf16) {
    return fmt::format("its kernels take float16 and bfloat16, not {}", name_of(problem.dtype));
  }
  if (problem.out_dtype != problem.dtype) {
    return fmt::format("its kernels write outputs of the inputs' type, not {}",
                       name_of(problem.out_dtype));
  }
  if (problem.head_dim != problem.head_dim_v || !is_compiled(problem.head_dim)) {
    return fmt::format("this build has no kernel of it for head_dim {}", problem.head_dim);
  }
  if (!shape.scale_is_positive) return "its kernels take a scale above 0";
  for (const Source source :
       {shape.q_lengths, shape.kv_lengths, shape.offsets_q, shape.offsets_kv}) {
    if (source == Source::device) return "one call per sample needs the lengths on the host";
  }
  return why_not_path(path_of(problem, shape, arch), problem, shape, "");
}

}  // namespace batten::impl::single
