// How far an output may lie from the reference (design §2.9), and where it lies furthest.
#pragma once

#include <batten/types.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cases.hpp"
#include "expected.hpp"
#include "geometry.hpp"

namespace batten::conformance {

// What a case can fail.
enum class Check {
  whole_output,  // ‖err‖ <= ε‖ref‖
  row,           // for each (row, head): ‖err‖ <= 4ε‖Σ p·|v|‖
  lse,
  no_key,       // a row that sees no key must be 0 with lse -inf
  stray_nan,    // NaN or Inf where there must be none
  missing_nan,  // a NaN in a visible key did not arrive
  unwritten,    // an element of the output still holds the poison
  outside,      // something outside the output was written, or an input changed
  repeat,       // different bits from equal calls
  batch,        // different bits alone and in the batch
  plan,         // forward did not reuse what prepare() built
  workspace,    // wrote past the scratch that was stated
  receipt,      // does not name the backend
  refusal,      // refused what served.json lists, or wrote although it refused
  error,        // any other exception
};
const char* name_of(Check check) noexcept;

struct Violation {
  Check check;
  std::string what;  // one line
};

// 4e-3 bf16, 8e-4 fp16, 2e-6 fp32.
double epsilon_of(DType dtype) noexcept;

// Relative error that fp32 rounding of logits this large explains; 0 for ordinary ones.
double logit_slack(double logit) noexcept;

// Absolute error allowed in an lse over `keys` keys with logits this large.
double lse_tolerance(double logit, std::int64_t keys) noexcept;

// The place of the largest error / bound.
struct Worst {
  std::int64_t sample = -1;
  std::int64_t row = -1;
  int head = -1;
  double error = 0;
  double bound = 0;

  double ratio() const noexcept;
  std::string str() const;  // "sample 1, row 64, head 3: error 0.2, bound 0.01"
};

struct BoundsReport {
  double rel_error = 0;  // ‖err‖ / ‖ref‖ of the whole output
  Worst whole;           // its error and bound
  Worst row;
  Worst lse;
  std::int64_t rows_compared = 0;
  bool sampled = false;
  std::vector<Violation> violations;  // at most one of each check

  bool passed() const noexcept { return violations.empty(); }
  void add(Check check, std::string what);
};

// `out` is [geometry.q_rows, Hq, D] and `lse` [geometry.q_rows, Hq] or empty; rows of no sample are
// not looked at. `nan` states where NaN is expected; null: nowhere.
BoundsReport check_bounds(const Problem& problem, const Geometry& geometry,
                          const Expected& expected, std::span<const float> out,
                          std::span<const float> lse, const Case* nan = nullptr);

}  // namespace batten::conformance
