// What `batten verify` found: the table on stdout and the JSON file.
#pragma once

#include <batten/types.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "runner.hpp"
#include "support/environment.hpp"

namespace batten::tools {

struct VerifySubject {
  std::string backend;
  Device device;
  std::vector<conformance::CaseResult> results;

  std::size_t count(conformance::Status status) const;
};

struct VerifyReport {
  std::string set;  // "quick" or "full"
  Json environment;
  std::string started;  // UTC
  double seconds = 0;
  bool complete = true;
  std::vector<VerifySubject> subjects;

  std::size_t count(conformance::Status status) const;
};

// Groups by backends, then why forms refuse cases, the failed cases with their reasons, and a
// summary line.
std::string verify_text(const VerifyReport& report);

Json verify_json(const VerifyReport& report);

}  // namespace batten::tools
