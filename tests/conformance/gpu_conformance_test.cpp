// Design §2 on the backends of the first GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "conformance.hpp"
#include "gpu_test.hpp"
#include "suite.hpp"

namespace batten::conformance {
namespace {

class GpuConformance : public testing::TestWithParam<GroupTest> {};

TEST_P(GpuConformance, Passes) {
  const GroupTest& test = GetParam();
  SKIP_UNLESS_AVAILABLE(test.backend, test.device);
  BackendSubject subject(test.backend, test.device);
  run_group(test, subject);
}

// Each row of served.json that names cuda. The CPU's reference vouches for its twin on the GPU.
std::vector<GroupTest> all_tests() {
  std::vector<GroupTest> all;
  const Device device = Device::cuda(0);
  for (const Served& served : served_backends()) {
    if (!served.on(DeviceType::cuda)) continue;
    const Oracle oracle{.device = served.name == "reference" ? Device::cpu() : device};
    for (GroupTest& test : group_tests(served.name, device, oracle)) {
      // On the CPU these would take minutes.
      if (served.name == "reference" && (test.group == "large" || test.group == "medium")) continue;
      all.push_back(std::move(test));
    }
  }
  // Forms that a user may force.
  for (const char* form : {"cudnn:packed", "native:divided", "native:joined"})
    for (GroupTest& test : group_tests(form, device, {.device = device}))
      all.push_back(std::move(test));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuConformance, testing::ValuesIn(all_tests()), test_name);

}  // namespace
}  // namespace batten::conformance
