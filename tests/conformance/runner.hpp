// Runs one case on one subject and judges the result.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bounds.hpp"
#include "cases.hpp"
#include "expected.hpp"
#include "served.hpp"
#include "subject.hpp"

namespace batten::conformance {

enum class Status {
  passed,
  failed,
  refused,  // Unsupported, and the backend may refuse this
  skipped,  // the case is not for this device
};
const char* name_of(Status status) noexcept;

struct CaseResult {
  std::string name;
  Status status = Status::passed;
  std::string reason;                 // of anything but passed: one line
  std::vector<Violation> violations;  // when failed
  BoundsReport bounds;
  Receipt receipt;
  bool padding_promised = false;  // served only after the promise that padding is finite
  double seconds = 0;             // all of it, the reference included once

  bool failed_by(Check check) const;
  // "tails/q64_kv65: row: sample 0, row 63, head 1: error 0.2, bound 0.01"
  std::string str() const;
};

// A case with its inputs and, once asked for, its expected output: one for several subjects.
class PreparedCase {
 public:
  PreparedCase(Case one, Oracle oracle);

  const Case& definition() const noexcept { return one_; }
  const Geometry& geometry() const noexcept { return geometry_; }
  const Inputs& inputs() const noexcept { return inputs_; }
  const Expected& expected();

 private:
  Case one_;
  Oracle oracle_;
  Geometry geometry_;
  Inputs inputs_;
  std::optional<Expected> expected_;
};

// Why the case does not run on the device; nothing: it does.
std::optional<std::string> not_applicable(const Case& one, Device device);

// Never throws batten::Error. `served` null: the row of the subject's backend; a backend without a
// row may refuse anything.
CaseResult run_case(PreparedCase& prepared, Subject& subject, const Served* served = nullptr);

// The same with `reference` on the subject's device as oracle.
CaseResult run_case(const Case& one, Subject& subject);

}  // namespace batten::conformance
