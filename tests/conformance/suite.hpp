// Running groups of cases as GoogleTest tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "conformance.hpp"

namespace batten::conformance {

// The reduced form, for sanitizers.
inline Set set_of_environment() {
  return std::getenv("BATTEN_TEST_QUICK") ? Set::quick : Set::full;
}

// One group of cases on one backend.
struct GroupTest {
  std::string backend;  // or "plain", for PlainSubject
  Device device;
  Oracle oracle;
  std::string group;
};

inline void PrintTo(const GroupTest& test, std::ostream* stream) {
  *stream << test.backend << " on " << test.device.str() << ", against " << test.oracle.backend
          << " on " << test.oracle.device.str() << ": " << test.group;
}

// A test for each group of the full list, whether or not the reduced form has cases of it: what
// tests there are is settled when they are built, not when they run.
inline std::vector<GroupTest> group_tests(const std::string& backend, Device device,
                                          const Oracle& oracle) {
  std::vector<GroupTest> tests;
  const Served* served = find_served(backend == "plain" ? "reference" : backend);
  for (const std::string& group : groups_of(cases(Set::full, *served, device.type)))
    tests.push_back({backend, device, oracle, group});
  return tests;
}

inline std::string test_name(const testing::TestParamInfo<GroupTest>& info) {
  std::string name = info.param.backend + "_" + info.param.group;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); },
      '_');
  return name;
}

// Fails once for each case that does, and says what else happened. `served` null: the backend's
// row.
inline void run_group(const GroupTest& test, Subject& subject) {
  const Served& served = *find_served(test.backend == "plain" ? "reference" : test.backend);
  int passed = 0;
  int skipped = 0;
  std::vector<std::string> refused;
  double worst = 0;
  const bool plain = test.backend == "plain";  // slow, and its quick cases reach every check
  const Set set = plain ? Set::quick : set_of_environment();
  for (const Case& one : cases(set, served, test.device.type)) {
    if (group_of(one) != test.group) continue;
    PreparedCase prepared(one, test.oracle);
    const CaseResult result = run_case(prepared, subject, &served);
    switch (result.status) {
      case Status::passed:
        ++passed;
        break;
      case Status::failed:
        ADD_FAILURE() << result.str();
        break;
      case Status::refused:
        refused.push_back(result.str());
        break;
      case Status::skipped:
        ++skipped;
        break;
    }
    worst = std::max(
        {worst, result.bounds.row.ratio(), result.bounds.whole.ratio(), result.bounds.lse.ratio()});
  }
  std::cout << passed << " passed, " << refused.size() << " refused, " << skipped
            << " not for this device; worst error " << worst << " of its bound\n";
  for (const std::string& line : refused) std::cout << "  " << line << "\n";
}

}  // namespace batten::conformance
