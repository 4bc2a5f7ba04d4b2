// Design §2 on the backends of the CPU, and on the suite's own plain loops, which tie the reference
// to something that shares no code with it.
#include "conformance.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "plain_subject.hpp"
#include "suite.hpp"

namespace batten::conformance {
namespace {

class Conformance : public testing::TestWithParam<GroupTest> {};

TEST_P(Conformance, Passes) {
  const GroupTest& test = GetParam();
  std::unique_ptr<Subject> subject = std::make_unique<PlainSubject>();
  if (test.backend != "plain")
    subject = std::make_unique<BackendSubject>(test.backend, test.device);
  run_group(test, *subject);
}

std::vector<GroupTest> all_tests() {
  std::vector<GroupTest> all;
  const auto add = [&](const std::string& backend, const std::string& reference) {
    for (GroupTest& test : group_tests(backend, Device::cpu(), {.backend = reference}))
      all.push_back(std::move(test));
  };
  add("cpu", "reference");
  add("reference", "reference:online");
  add("plain", "reference");
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cpu, Conformance, testing::ValuesIn(all_tests()), test_name);

// Every combination that served.json lists has a case of its own.
TEST(Served, EveryCombinationHasACase) {
  for (const Served& served : served_backends()) {
    const std::size_t forms = (served.uniform ? 1u : 0u) + (served.ragged ? 2u : 0u);
    const std::size_t combinations = served.dtypes.size() * served.head_dims.size() *
                                     served.groupings.size() * served.masks.size() * forms *
                                     served.lse.size();
    for (const DeviceType device : served.devices) {
      std::size_t found = 0;
      for (const Case& one : cases(Set::full, served, device))
        if (group_of(one).starts_with("served_")) {
          ++found;
          EXPECT_EQ(may_refuse(served, one).value_or(""),
                    one.garbage != Garbage::finite && is_ragged(one) &&
                            served.may_refuse.contains("nonfinite_padding")
                        ? served.may_refuse.at("nonfinite_padding")
                        : "")
              << one.name;
        }
      EXPECT_EQ(found, combinations) << served.name;
    }
  }
}

TEST(Served, NamesOfCasesAreUnique) {
  for (const Served& served : served_backends())
    for (const DeviceType device : served.devices) {
      std::vector<std::string> names;
      for (const Case& one : cases(Set::full, served, device)) names.push_back(one.name);
      std::sort(names.begin(), names.end());
      const auto twice = std::adjacent_find(names.begin(), names.end());
      EXPECT_EQ(twice, names.end()) << *twice;
    }
}

TEST(Served, BadTextIsRefused) {
  EXPECT_THROW(parse_served("{"), Error);
  EXPECT_THROW(parse_served(R"({"backends": [{"name": "x"}]})"), Error);
  EXPECT_THROW(parse_served(R"({"backends": [{"name": "x", "devices": ["tpu"]}]})"), Error);
}

TEST(Served, FormsShareTheRowOfTheirBackend) {
  ASSERT_NE(find_served("cudnn:packed"), nullptr);
  EXPECT_EQ(find_served("cudnn:packed")->name, "cudnn");
  EXPECT_EQ(find_served("nobody"), nullptr);
}

}  // namespace
}  // namespace batten::conformance
