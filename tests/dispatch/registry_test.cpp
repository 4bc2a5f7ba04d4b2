// The backends of the product, and of a build that lacks some.
#include "dispatch/registry.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backends/absent.hpp"
#include "fakes/expect_error.hpp"
#include "fakes/fake_backend.hpp"

namespace batten::testing {
namespace {

using impl::Registry;

TEST(Registry, HoldsTheProductsBackendsInAutosOrder) {
  std::vector<std::string> names;
  for (const impl::Registration& entry : impl::make_backends()) {
    names.emplace_back(entry.backend->name());
    EXPECT_EQ(entry.automatic, entry.backend->name() != "reference") << names.back();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"native", "cudnn", "single", "cpu", "reference"}));
}

TEST(Registry, EveryBackendKnowsWhyItIsNotAvailable) {
  for (const impl::Registration& entry : impl::make_backends()) {
    for (const Device device : {Device::cpu(), Device::cuda(0)}) {
      const impl::Availability a = entry.backend->availability(device);
      EXPECT_NE(a.available, !a.reason.empty()) << entry.backend->name() << " on " << device.str();
      EXPECT_EQ((a.reason + a.remedy + a.library).find('\n'), std::string::npos);
    }
  }
}

TEST(Registry, TheCpuServesItselfAndNoGpu) {
  const auto backends = impl::make_backends();
  for (const impl::Registration& entry : backends) {
    const std::string_view name = entry.backend->name();
    EXPECT_EQ(entry.backend->availability(Device::cpu()).available,
              name == "cpu" || name == "reference")
        << name;
  }
  EXPECT_FALSE(backends[3].backend->availability(Device::cuda(0)).available);
}

TEST(Registry, FindsByTheWholeName) {
  FakeBackends backends;
  const FakeBackend& cpu = backends.add("cpu");
  const FakeBackend& other = backends.add("cpu2");
  EXPECT_EQ(Registry::instance().find("cpu"), &cpu);
  EXPECT_EQ(Registry::instance().find("cpu2"), &other);
  EXPECT_EQ(Registry::instance().find("cp"), nullptr);
  EXPECT_EQ(Registry::instance().find(""), nullptr);
  EXPECT_EQ(Registry::instance().legal_names(), "auto, cpu, cpu2");
}

TEST(AbsentBackend, KeepsItsNameAndSaysWhatWouldBringIt) {
  const impl::AbsentBackend absent("cudnn", "built without it", "rebuild");
  EXPECT_EQ(absent.name(), "cudnn");
  EXPECT_TRUE(absent.forms().empty());
  const impl::Availability a = absent.availability(Device::cuda(0));
  EXPECT_FALSE(a.available);
  EXPECT_EQ(a.reason, "built without it");
  EXPECT_EQ(a.remedy, "rebuild");
  EXPECT_EQ(absent.why_not({}, Device::cuda(0)), "built without it");
  expect_error(ErrorCode::Unavailable, {"built without it"},
               [&] { (void)absent.plan({}, {}, Device::cuda(0), {}); });
}

}  // namespace
}  // namespace batten::testing
