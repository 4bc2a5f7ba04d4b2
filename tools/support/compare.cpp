#include "support/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "support/environment.hpp"

namespace batten::tools {
namespace {

constexpr std::int64_t kCpuSampledRows = 512;

// Rows that no query attends for: written 0, with lse -inf.
void check_rows_past_lengths(const conformance::Case& call, const conformance::Geometry& geometry,
                             const std::vector<float>& out, const std::vector<float>& lse,
                             conformance::BoundsReport& report) {
  const auto heads = static_cast<std::size_t>(call.problem.num_heads);
  const std::size_t width = heads * static_cast<std::size_t>(call.problem.head_dim);
  for (std::size_t b = 0; b < geometry.samples.size(); ++b) {
    const conformance::Sample& sample = geometry.samples[b];
    const auto begin = static_cast<std::size_t>(sample.q_begin + sample.q_length);
    const auto end = static_cast<std::size_t>(sample.q_begin + sample.q_rows);
    const auto at = [](const std::vector<float>& v, std::size_t i) {
      return v.begin() + static_cast<std::ptrdiff_t>(i);
    };
    const bool zero =
        std::all_of(at(out, begin * width), at(out, end * width), [](float x) { return x == 0; });
    const bool minus_infinity =
        lse.empty() || std::all_of(at(lse, begin * heads), at(lse, end * heads), [](float x) {
          return x == -std::numeric_limits<float>::infinity();
        });
    if (!zero || !minus_infinity) {
      report.add(conformance::Check::no_key,
                 fmt::format("sample {}: rows past its q_length {} are not 0 with lse -inf", b,
                             sample.q_length));
    }
  }
}

}  // namespace

conformance::Case dense_case(const Problem& problem, std::int64_t batch, std::int64_t q,
                             std::int64_t kv, std::vector<std::int32_t> q_lengths,
                             std::vector<std::int32_t> kv_lengths) {
  conformance::Case call;
  call.name = "dense/call";
  call.problem = problem;
  call.batch = batch;
  call.q = q;
  call.kv = kv;
  call.q_lengths = std::move(q_lengths);
  call.kv_lengths = std::move(kv_lengths);
  return call;
}

conformance::Oracle oracle_for(Device device, double cpu_flops) {
  conformance::Oracle oracle;
  if (!device.is_cpu()) {
    const LibraryInfo info = library_info();
    const BackendInfo* reference = info.find("reference");
    const BackendState* state = reference != nullptr ? reference->on(device) : nullptr;
    if (state != nullptr && state->available) oracle.device = device;
  }
  if (oracle.device.is_cpu()) {
    oracle.sample_above_flops = cpu_flops;
    oracle.sampled_rows = kCpuSampledRows;
  }
  return oracle;
}

conformance::BoundsReport compare_with_reference(const conformance::Case& call,
                                                 const conformance::Inputs& inputs,
                                                 const std::vector<float>& out,
                                                 const std::vector<float>& lse,
                                                 const conformance::Oracle& oracle) {
  const conformance::Geometry geometry = conformance::geometry_of(call);
  const conformance::Expected expected = conformance::compute_expected(
      call.problem, conformance::scale_of(call), geometry, inputs, oracle);
  conformance::BoundsReport report =
      conformance::check_bounds(call.problem, geometry, expected, out, lse);
  check_rows_past_lengths(call, geometry, out, lse, report);
  return report;
}

ReferenceRows::ReferenceRows(const conformance::Case& call, const conformance::Inputs& inputs,
                             const conformance::Oracle& oracle)
    : problem_(call.problem),
      geometry_(conformance::geometry_of(call)),
      expected_(conformance::compute_expected(problem_, conformance::scale_of(call), geometry_,
                                              inputs, oracle)) {}

double ReferenceRows::rel_error(const std::vector<float>& out) const {
  return conformance::check_bounds(problem_, geometry_, expected_, out, {}).rel_error;
}

Agreement compare_values(const std::vector<float>& got, const std::vector<float>& recorded) {
  double error = 0;
  double norm = 0;
  Agreement agreement;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    // Equal infinities (the lse of a row without keys) are no difference.
    const double difference = got[i] == recorded[i] ? 0.0 : double{got[i]} - double{recorded[i]};
    error += difference * difference;
    if (std::isfinite(recorded[i])) norm += double{recorded[i]} * double{recorded[i]};
    if (!(std::fabs(difference) <= agreement.largest)) agreement.largest = std::fabs(difference);
  }
  agreement.rel_error = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  return agreement;
}

}  // namespace batten::tools
