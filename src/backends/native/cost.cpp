#include "backends/native/cost.hpp"

#include <algorithm>

#include "backends/native/division.hpp"
#include "backends/native/rules.hpp"

namespace batten::impl::native {

namespace {

// What a tile with few rows costs beside its blocks, in parts of what a full one costs: fewer
// queries are copied, and less output is written. Fitted on an H200.
double share_of_full_tile(const Shape& shape) {
  constexpr double kEmpty = 0.4;
  const double rows = static_cast<double>(std::min<std::int64_t>(shape.max_q, kTileRows));
  return kEmpty + (1 - kEmpty) * rows / kTileRows;
}

// What a step takes with the sm80 kernels for little shared memory, in steps of those for more, of
// which the constants are: measured on an H200 (docs/kernels/sm80.md).
double step_of(const sm80::Configuration& c) {
  if (c.block_keys != 32) return 1;
  return c.head_dim == 256 ? 1.23 : 1.15;
}

}  // namespace

// What the busiest multiprocessor does when tiles are dealt out as the kernels deal them. CTAs that
// share it take turns: it does what all of them do.
cost::Work work_of(const Target& target, const Problem& problem, const Shape& shape,
                   const BackendOptions& options) {
  const Kernel kernel = kernel_of(target, problem, shape, options.form);
  const Workers& workers = kernel.workers;
  cost::Work work;
  work.flops = cost::flops_of(problem, shape);
  work.bytes = cost::bytes_of(problem, shape);
  const std::int64_t samples = samples_of_launch(problem, shape, workers.ctas);
  const std::int64_t launches = (shape.batch + samples - 1) / samples;
  work.launches = static_cast<double>(launches);
  const DivisionChoice choice = choose_division(problem, shape, options.form, kernel.keys, workers);
  if (choice.division.divides()) {
    const int busy = std::min(choice.division.all_shares() + choice.division.whole, workers.ctas);
    const int together = (busy + workers.multiprocessors - 1) / workers.multiprocessors;
    work.starts = choice.load.starts * together * share_of_full_tile(shape);
    work.blocks = choice.load.blocks * together * kernel.keys / cost::kUnitKeys *
                  step_of(kernel.configuration);
    work.launches = choice.load.launches + (choice.joins ? 0 : 1);  // that puts parts together
    work.parts = choice.load.parts_of_cta * together;
    work.merges = choice.load.parts / workers.multiprocessors;
    return work;
  }
  const cost::Grid grid =
      cost::grid_of(problem.mask, cost::lengths_of(shape), samples * problem.num_heads, kTileRows,
                    kernel.keys, workers.multiprocessors);
  work.starts = work.launches * grid.busiest_starts * share_of_full_tile(shape);
  work.blocks = work.launches * grid.busiest_blocks * step_of(kernel.configuration);
  return work;
}

std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& given,
                                        const Shape& shape, const BackendOptions& options) {
  if (why_no_target(card.properties().arch)) return std::nullopt;
  const Target target = target_of(card.properties());
  const Problem problem = without_idle_mask(given, shape);
  const auto entry = card.find(constants_of(target), problem.head_dim, problem.mask != Mask::none);
  if (!entry) return std::nullopt;
  const cost::Work work = work_of(target, problem, shape, options);
  cost::Prediction prediction = cost::predict(*entry, work);
  // Only joined tiles are in parts and done with one launch.
  if (work.parts > 0) prediction.form = work.launches > 1 ? kDivided : kJoined;
  prediction.usual = !target.is_forced && !target.is_limited;
  return prediction;
}

std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                      const Shape& shape, const BackendOptions& options) {
  if (auto reason = why_no_target(card.properties().arch)) return reason;
  const Target target = target_of(card.properties());
  if (auto reason = why_not(target, problem)) return reason;
  return why_not(target, problem, shape, options.form);
}

}  // namespace batten::impl::native
