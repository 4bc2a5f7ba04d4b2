#include "cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "case_builder.hpp"

namespace batten::conformance {
namespace {

template <class T>
bool lists(const std::vector<T>& values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool any_below(const std::vector<std::int32_t>& lengths, std::int64_t all) {
  return std::any_of(lengths.begin(), lengths.end(), [&](std::int32_t n) { return n < all; });
}

// Calls test(query length, key/value length) for each sample until one answers true.
template <class Test>
bool any_sample(const Case& one, Test&& test) {
  for (std::size_t b = 0; b < static_cast<std::size_t>(one.batch); ++b) {
    const std::int64_t q = one.q_lengths.empty() ? one.q : one.q_lengths[b];
    const std::int64_t kv = one.kv_lengths.empty() ? one.kv : one.kv_lengths[b];
    if (test(q, kv)) return true;
  }
  return false;
}

// Whether there are tokens, or rows past the end of a packed buffer, that a kernel working in tiles
// might read.
bool has_padding(const Case& one) {
  return one.form == Form::packed || any_below(one.q_lengths, one.q) ||
         any_below(one.kv_lengths, one.kv);
}

// The row's combinations, at a shape of a few tiles.
constexpr std::int64_t kCpuRows = 18, kCpuKeys = 70;
constexpr std::int64_t kGpuRows = 150, kGpuKeys = 300;
// One in so many is in the quick set; prime, so that no list is skipped over.
constexpr std::size_t kQuickEvery = 23;

}  // namespace

void add_served_cases(CaseBuilder& builder, const Served& served) {
  struct Batch {
    const char* name;
    bool ragged;
    Form form;
  };
  constexpr Batch kBatches[] = {{"uniform", false, Form::bshd},
                                {"lengths", true, Form::bshd},
                                {"packed", true, Form::packed}};
  // The reference has no tiles, and on the GPU it is the CPU that must keep up with it.
  const bool large = builder.on_gpu() && served.name != "reference";
  const std::int64_t rows = large ? kGpuRows : kCpuRows;
  const std::int64_t keys = large ? kGpuKeys : kCpuKeys;
  std::size_t count = 0;
  for (const DType dtype : served.dtypes)
    for (const int dim : served.head_dims)
      for (const Grouping grouping : served.groupings)
        for (const Mask mask : served.masks)
          for (const Batch& batch : kBatches)
            for (const bool lse : served.lse) {
              if (!(batch.ragged ? served.ragged : served.uniform)) continue;
              const Heads heads = grouping == Grouping::mha   ? kMha
                                  : grouping == Grouping::gqa ? kGqa
                                                              : kMqa;
              Case& one = builder.add(fmt::format("served_{}", name_of(dtype)).c_str(),
                                      fmt::format("{}{}", batch.name, lse ? "_lse" : ""), heads,
                                      mask, 2, rows, keys, dtype, dim);
              one.form = batch.form;
              one.lse = lse;
              if (batch.ragged) {
                one.q_lengths = {static_cast<std::int32_t>(rows),
                                 static_cast<std::int32_t>(rows / 2 - 2)};
                one.kv_lengths = {static_cast<std::int32_t>(keys / 2 - 1),
                                  static_cast<std::int32_t>(keys)};
              }
              one.quick = count++ % kQuickEvery == 0;
            }
}

std::vector<Case> cases(Set set, const Served& served, DeviceType device) {
  std::vector<Case> list;
  CaseBuilder builder(served, device, list);
  add_shape_cases(builder);
  add_value_cases(builder);
  add_use_cases(builder);
  add_served_cases(builder, served);
  if (set == Set::quick) std::erase_if(list, [](const Case& one) { return !one.quick; });
  return list;
}

std::string group_of(const Case& one) { return one.name.substr(0, one.name.find('/')); }

std::vector<std::string> groups_of(const std::vector<Case>& list) {
  std::vector<std::string> groups;
  for (const Case& one : list)
    if (!lists(groups, group_of(one))) groups.push_back(group_of(one));
  return groups;
}

double scale_of(const Case& one) {
  if (one.call_scale) return *one.call_scale;
  return one.problem.scale.value_or(1 / std::sqrt(static_cast<double>(one.problem.head_dim)));
}

int kv_heads_of(const Problem& problem) noexcept {
  return problem.num_kv_heads ? problem.num_kv_heads : problem.num_heads;
}

Grouping grouping_of(const Problem& problem) noexcept {
  if (kv_heads_of(problem) == problem.num_heads) return Grouping::mha;
  return kv_heads_of(problem) == 1 ? Grouping::mqa : Grouping::gqa;
}

bool is_ragged(const Case& one) {
  return one.form == Form::packed || !one.q_lengths.empty() || !one.kv_lengths.empty();
}

std::vector<std::string> features(const Case& one) {
  std::vector<std::string> all;
  const auto add = [&](bool has, const char* name) {
    if (has) all.emplace_back(name);
  };
  add(!(scale_of(one) > 0), "nonpositive_scale");
  add(one.garbage != Garbage::finite && has_padding(one), "nonfinite_padding");
  add(one.problem.out_dtype == DType::f32 && one.problem.dtype != DType::f32, "float32_output");
  add(one.problem.batch_invariant, "batch_invariant");
  add(one.placement == Placement::device, "device_lengths");
  add(any_sample(one, [](std::int64_t q, std::int64_t kv) { return q == 0 || kv == 0; }),
      "empty_samples");
  add(one.problem.mask == Mask::causal &&
          any_sample(one, [](std::int64_t q, std::int64_t kv) { return q > kv; }),
      "more_queries_than_keys");
  add(one.gap > 0 || one.lead > 0 || one.tail > 0, "gaps");
  add(one.strides == Strides::shared_batch || one.strides == Strides::shared_heads, "shared_kv");
  return all;
}

std::optional<std::string> may_refuse(const Served& served, const Case& one) {
  if (served.may_refuse_anything) return "a form may serve less than its backend";
  const Problem& p = one.problem;
  const auto unlisted = [](std::string what) { return what + " is not in its row of served.json"; };
  if (!lists(served.dtypes, p.dtype)) return unlisted(name_of(p.dtype));
  if (!lists(served.head_dims, p.head_dim)) return unlisted(fmt::format("head dim {}", p.head_dim));
  if (!lists(served.groupings, grouping_of(p))) return unlisted(name_of(grouping_of(p)));
  if (!lists(served.masks, p.mask)) return unlisted(fmt::format("mask {}", name_of(p.mask)));
  if (!lists(served.lse, one.lse)) return unlisted(one.lse ? "lse" : "a call without lse");
  if (!(is_ragged(one) ? served.ragged : served.uniform))
    return unlisted(is_ragged(one) ? "a ragged batch" : "a uniform batch");
  for (const std::string& feature : features(one))
    if (const auto found = served.may_refuse.find(feature); found != served.may_refuse.end())
      return found->second;
  return {};
}

}  // namespace batten::conformance
