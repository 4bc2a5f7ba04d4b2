#include "bounds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "contents.hpp"

namespace batten::conformance {
namespace {

constexpr double kUnit = 0x1p-24;  // of fp32: half of its epsilon
// Roundings of numbers as large as the largest logit on its way into the softmax: the partial sums
// of the dot product, the scale, the change to base 2, the difference to the maximum.
constexpr double kRoundings = 16;
// Up to here the logits' rounding is inside ε.
constexpr double kOrdinaryLogit = 16;
// An element of a row may be off by this part of Σ p·|v|, times ε.
constexpr double kRowFactor = 4;

// Half the distance between the smallest numbers of a format: an error no relative bound covers.
double quantum_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f16:
      return 0x1p-25;
    case DType::bf16:
      return 0x1p-134;
    default:
      return 0x1p-150;
  }
}

// Collects one output row and head after the other.
class Comparison {
 public:
  Comparison(const Problem& problem, BoundsReport& report)
      : report_(report),
        epsilon_(epsilon_of(problem.dtype)),
        floor_(std::sqrt(static_cast<double>(problem.head_dim)) *
               quantum_of(problem.out_dtype == DType::none ? problem.dtype : problem.out_dtype)) {}

  void row(Worst place, std::span<const float> out, std::span<const float> ref, double magnitude,
           double logit) {
    double error = 0;
    double norm = 0;
    for (std::size_t d = 0; d < out.size(); ++d) {
      const double e = static_cast<double>(out[d]) - static_cast<double>(ref[d]);
      error += e * e;
      norm += static_cast<double>(ref[d]) * static_cast<double>(ref[d]);
    }
    const double slack = logit_slack(logit) * magnitude + floor_;
    error_ += error;
    norm_ += norm;
    slack_ += slack * slack;
    place.error = std::sqrt(error);
    place.bound = kRowFactor * epsilon_ * magnitude + slack;
    if (!(place.ratio() <= report_.row.ratio())) report_.row = place;
  }

  void lse(Worst place, double got, double ref, double logit, std::int64_t keys) {
    place.error = std::abs(got - ref);
    place.bound = lse_tolerance(logit, keys);
    if (!(place.ratio() <= report_.lse.ratio())) report_.lse = place;
  }

  void finish() {
    report_.whole.error = std::sqrt(error_);
    report_.whole.bound = epsilon_ * std::sqrt(norm_) + std::sqrt(slack_);
    report_.rel_error = norm_ > 0 ? std::sqrt(error_ / norm_) : std::sqrt(error_);
    if (!(report_.whole.ratio() <= 1))
      report_.add(Check::whole_output,
                  fmt::format("whole output: error {:.3g}, bound {:.3g} (relative error {:.3g})",
                              report_.whole.error, report_.whole.bound, report_.rel_error));
    if (!(report_.row.ratio() <= 1)) report_.add(Check::row, report_.row.str());
    if (!(report_.lse.ratio() <= 1)) report_.add(Check::lse, "lse of " + report_.lse.str());
  }

 private:
  BoundsReport& report_;
  double epsilon_;
  double floor_;
  double error_ = 0;
  double norm_ = 0;
  double slack_ = 0;
};

bool is_nan(float value) { return std::isnan(value); }

// Whether a row and head is what one without keys must be. `lse` null: not asked for.
bool is_empty_row(std::span<const float> out, const float* lse) {
  return std::all_of(out.begin(), out.end(), [](float x) { return x == 0; }) &&
         (!lse || *lse == -INFINITY);
}

// Dense outputs: rows past a sample's query length.
void check_padding_rows(const Problem& problem, const Geometry& geometry,
                        std::span<const float> out, std::span<const float> lse,
                        BoundsReport& report) {
  const auto heads = static_cast<std::size_t>(problem.num_heads);
  const auto dim = static_cast<std::size_t>(problem.head_dim);
  for (std::size_t b = 0; b < geometry.samples.size(); ++b) {
    const Sample& sample = geometry.samples[b];
    for (std::int64_t i = sample.q_length; i < sample.q_rows; ++i)
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t at = static_cast<std::size_t>(sample.q_begin + i) * heads + h;
        if (!is_empty_row(out.subspan(at * dim, dim), lse.empty() ? nullptr : &lse[at]))
          report.add(Check::no_key, fmt::format("sample {}, row {}, head {} lies past the query "
                                                "length {}, but is not 0 with lse -inf",
                                                b, i, h, sample.q_length));
      }
  }
}

}  // namespace

const char* name_of(Check check) noexcept {
  switch (check) {
    case Check::whole_output:
      return "whole_output";
    case Check::row:
      return "row";
    case Check::lse:
      return "lse";
    case Check::no_key:
      return "no_key";
    case Check::stray_nan:
      return "stray_nan";
    case Check::missing_nan:
      return "missing_nan";
    case Check::unwritten:
      return "unwritten";
    case Check::outside:
      return "outside";
    case Check::repeat:
      return "repeat";
    case Check::batch:
      return "batch";
    case Check::plan:
      return "plan";
    case Check::workspace:
      return "workspace";
    case Check::receipt:
      return "receipt";
    case Check::refusal:
      return "refusal";
    case Check::error:
      return "error";
  }
  return "unknown";
}

double epsilon_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::bf16:
      return 4e-3;
    case DType::f16:
      return 8e-4;
    default:
      return 2e-6;
  }
}

double logit_slack(double logit) noexcept {
  return kRoundings * kUnit * std::max(0.0, std::abs(logit) - kOrdinaryLogit);
}

double lse_tolerance(double logit, std::int64_t keys) noexcept {
  // The sum of the weights rounds once a key, like a random walk.
  return kRoundings * kUnit * (std::abs(logit) + kOrdinaryLogit) +
         4 * kUnit * std::sqrt(static_cast<double>(keys));
}

double Worst::ratio() const noexcept {
  if (error == 0) return 0;
  return bound > 0 ? error / bound : std::numeric_limits<double>::infinity();
}

std::string Worst::str() const {
  return fmt::format("sample {}, row {}, head {}: error {:.3g}, bound {:.3g}", sample, row, head,
                     error, bound);
}

void BoundsReport::add(Check check, std::string what) {
  const bool known = std::any_of(violations.begin(), violations.end(),
                                 [&](const Violation& v) { return v.check == check; });
  if (!known) violations.push_back({check, std::move(what)});
}

BoundsReport check_bounds(const Problem& problem, const Geometry& geometry,
                          const Expected& expected, std::span<const float> out,
                          std::span<const float> lse, const Case* nan) {
  BoundsReport report;
  report.sampled = expected.sampled;
  report.rows_compared = static_cast<std::int64_t>(expected.rows.size());
  Comparison comparison(problem, report);
  const auto heads = static_cast<std::size_t>(problem.num_heads);
  const auto dim = static_cast<std::size_t>(problem.head_dim);

  for (std::size_t r = 0; r < expected.rows.size(); ++r) {
    const ExpectedRow& at = expected.rows[r];
    const Sample& sample = geometry.samples[static_cast<std::size_t>(at.sample)];
    const auto row = static_cast<std::size_t>(sample.q_begin + at.row);
    const std::int64_t keys = visible_keys(problem.mask, at.row, sample);
    for (std::size_t h = 0; h < heads; ++h) {
      const Worst place{.sample = at.sample, .row = at.row, .head = static_cast<int>(h)};
      const auto got = out.subspan((row * heads + h) * dim, dim);
      const float got_lse = lse.empty() ? 0.f : lse[row * heads + h];
      const NanRule rule =
          nan ? nan_rule(*nan, geometry, at.sample, at.row, place.head) : NanRule::never;
      if (rule == NanRule::must) {
        if (!std::all_of(got.begin(), got.end(), is_nan))
          report.add(Check::missing_nan, fmt::format("{} has numbers", place.str()));
        if (!lse.empty() && nan->contents == Contents::nan_key && !is_nan(got_lse))
          report.add(Check::missing_nan, fmt::format("{} has an lse", place.str()));
        continue;
      }
      if (rule == NanRule::may && std::any_of(got.begin(), got.end(), is_nan)) continue;
      if (keys == 0) {
        if (!is_empty_row(got, lse.empty() ? nullptr : &got_lse))
          report.add(Check::no_key,
                     fmt::format("sample {}, row {}, head {} sees no key, but out is "
                                 "{} and lse {}",
                                 at.sample, at.row, h, got[0], got_lse));
        continue;
      }
      const bool finite =
          std::all_of(got.begin(), got.end(), [](float x) { return std::isfinite(x); });
      if (!finite || (!lse.empty() && !std::isfinite(got_lse))) {
        report.add(Check::stray_nan,
                   fmt::format("sample {}, row {}, head {}: NaN or Inf", at.sample, at.row, h));
        continue;
      }
      const std::size_t at_head = r * heads + h;
      const std::span<const float> ref{expected.out.data() + at_head * dim, dim};
      const float logit = expected.logit[at_head];
      comparison.row(place, got, ref, expected.magnitude[at_head], logit);
      if (!lse.empty()) comparison.lse(place, got_lse, expected.lse[at_head], logit, keys);
    }
  }
  comparison.finish();
  check_padding_rows(problem, geometry, out, lse, report);
  return report;
}

}  // namespace batten::conformance
