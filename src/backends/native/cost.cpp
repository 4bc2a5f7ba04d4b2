#include "backends/native/cost.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backends/native/division.hpp"
#include "backends/native/rules.hpp"

namespace batten::impl::native {

namespace {

// What the busiest multiprocessor does when tiles are dealt out as the kernels deal them.
cost::Work work_of(const Problem& problem, const Shape& shape, const BackendOptions& options,
                   int multiprocessors) {
  cost::Work work;
  work.flops = cost::flops_of(problem, shape);
  work.bytes = cost::bytes_of(problem, shape);
  const std::int64_t samples =
      std::clamp<std::int64_t>(samples_of_launch(problem, shape, multiprocessors), 1,
                               std::max<std::int64_t>(shape.batch, 1));
  const std::int64_t launches = (shape.batch + samples - 1) / samples;
  work.launches = static_cast<double>(launches);
  const int keys = block_keys(problem, shape, options.form);
  const DivisionChoice choice =
      choose_division(problem, shape, options.form, keys, multiprocessors);
  if (choice.division.divides()) {
    work.starts = choice.load.starts;
    work.blocks = choice.load.blocks * keys / cost::kUnitKeys;
    work.launches = choice.load.launches + 1;  // the one that puts parts together
    work.parts = choice.load.parts_of_cta;
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

}  // namespace

std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& given,
                                        const Shape& shape, const BackendOptions& options) {
  const Problem problem = without_idle_mask(given, shape);
  const auto constants = card.find("native", problem.head_dim, problem.mask != Mask::none);
  if (!constants) return std::nullopt;
  return cost::predict(*constants,
                       work_of(problem, shape, options, card.properties().multiprocessors));
}

std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                      const Shape& shape, const BackendOptions& options) {
  const int arch = card.properties().arch;
  if (arch != 90) return fmt::format("its kernels are for sm90, not sm{}", arch);
  if (auto reason = why_not(problem)) return reason;
  if (auto reason = why_not_form(problem, options.form)) return reason;
  return why_not(problem, shape);
}

}  // namespace batten::impl::native
