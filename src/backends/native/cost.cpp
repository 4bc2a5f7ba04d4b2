#include "backends/native/cost.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backends/native/division.hpp"
#include "backends/native/rules.hpp"

namespace batten::impl::native {

// What the busiest multiprocessor does when tiles are dealt out as the kernels deal them. CTAs that
// share it take turns: it does what all of them do.
cost::Work work_of(const Target& target, const Problem& problem, const Shape& shape,
                   const BackendOptions& options) {
  const int multiprocessors = target.multiprocessors;
  const int ctas = ctas_of(target, problem);
  cost::Work work;
  work.flops = cost::flops_of(problem, shape);
  work.bytes = cost::bytes_of(problem, shape);
  const std::int64_t samples = std::clamp<std::int64_t>(samples_of_launch(problem, shape, ctas), 1,
                                                        std::max<std::int64_t>(shape.batch, 1));
  const std::int64_t launches = (shape.batch + samples - 1) / samples;
  work.launches = static_cast<double>(launches);
  const int keys = block_keys(target, problem, shape, options.form);
  const DivisionChoice choice = choose_division(problem, shape, options.form, keys, ctas);
  if (choice.division.divides()) {
    const int busy = std::min(choice.division.all_shares() + choice.division.whole, ctas);
    const int together = (busy + multiprocessors - 1) / multiprocessors;
    work.starts = choice.load.starts * together;
    work.blocks = choice.load.blocks * together * keys / cost::kUnitKeys;
    work.launches = choice.load.launches + 1;  // the one that puts parts together
    work.parts = choice.load.parts_of_cta * together;
    work.merges = choice.load.parts / multiprocessors;
    return work;
  }
  const cost::Grid grid =
      cost::grid_of(problem.mask, cost::lengths_of(shape), samples * problem.num_heads, kTileRows,
                    keys, multiprocessors);
  work.starts = work.launches * grid.busiest_starts;
  work.blocks = work.launches * grid.busiest_blocks;
  return work;
}

std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& given,
                                        const Shape& shape, const BackendOptions& options) {
  const auto target = target_of(card.properties());
  if (!target) return std::nullopt;
  const Problem problem = without_idle_mask(given, shape);
  auto entry = card.find("native", problem.head_dim, problem.mask != Mask::none);
  if (!entry) return std::nullopt;
  if (target->is_forced) {
    // The constants are those of the other family: of the tensor cores' speed mma.sync reaches so
    // much on a Hopper card.
    constexpr double kOfWgmma = 0.55;
    entry->constants.tile_us /= kOfWgmma;
    entry->constants.block_us /= kOfWgmma;
    entry->constants.tflops *= kOfWgmma;
    entry->origin = cost::Origin::estimated;
  }
  return cost::predict(*entry, work_of(*target, problem, shape, options));
}

std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                      const Shape& shape, const BackendOptions& options) {
  const auto target = target_of(card.properties());
  if (!target) {
    return fmt::format("its kernels are for sm80 and newer, not sm{}", card.properties().arch);
  }
  if (auto reason = why_not(*target, problem)) return reason;
  return why_not(*target, problem, shape, options.form);
}

}  // namespace batten::impl::native
