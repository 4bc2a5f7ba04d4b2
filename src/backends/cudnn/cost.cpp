#include "backends/cudnn/cost.hpp"

#include "backends/cudnn/rules.hpp"

namespace batten::impl::cudnn {
namespace {

// Of its kernels for 16-bit inputs; those of other head dims are near enough that the constants
// make up for it.
constexpr int kTileRows = 128;
constexpr int kBlockKeys = 128;

// Whether cuDNN takes its kernel for one query, which divides the keys.
// Above this its kernel for one query divides the keys; measured with 9.19 on an H200.
constexpr std::int64_t kKeysOfShortDecode = 64;

bool is_decode(const Shape& shape, Form form) { return form != Form::packed && shape.max_q == 1; }

const char* kernel_name(const Shape& shape, Form form) {
  if (is_decode(shape, form)) return "cudnn:decode";
  switch (form) {
    case Form::dense:
      break;
    case Form::packed:
      return "cudnn:packed";
    case Form::lengths:
      return "cudnn:lengths";
  }
  return "cudnn";
}

}  // namespace

std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& problem,
                                        const Shape& shape, const BackendOptions& options) {
  const Form form = form_of(problem, shape, options.form);
  const bool causal = problem.mask != Mask::none && !is_decode(shape, form);
  const auto constants = card.find(kernel_name(shape, form), problem.head_dim, causal);
  if (!constants) return std::nullopt;
  cost::Work work;
  work.flops = cost::flops_of(problem, shape);
  work.bytes = cost::bytes_of(problem, shape);
  cost::Lengths lengths = cost::lengths_of(shape);
  std::int64_t samples = shape.batch;
  switch (form == Form::dense ? sharing_of(problem, shape) : Sharing::none) {
    case Sharing::none:
      break;
    case Sharing::merged:
      lengths.queries *= samples;
      samples = 1;
      break;
    case Sharing::repeated:
      work.launches = static_cast<double>(samples);
      samples = 1;
      break;
  }
  if (!is_decode(shape, form)) {
    const cost::Grid grid = cost::grid_of(problem.mask, lengths, samples * problem.num_heads,
                                          kTileRows, kBlockKeys, card.properties().multiprocessors);
    work.starts = work.launches * grid.busiest_starts;
    work.blocks = work.launches * grid.busiest_blocks;
  } else if (shape.max_kv > kKeysOfShortDecode) {
    work.starts = 1;
  }
  return cost::predict(*constants, work);
}

std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                      const Shape& shape, const BackendOptions& options) {
  const int arch = card.properties().arch;
  if (auto reason = why_not(problem, arch, kAssumedVersion)) return reason;
  return why_not(problem, shape, options.form, arch, kAssumedVersion);
}

}  // namespace batten::impl::cudnn
