// The device guard, and the runtime of a process.
#include "core/device.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "fakes/expect_error.hpp"
#include "fakes/fake_device.hpp"

namespace batten::testing {
namespace {

using impl::DeviceGuard;

class DeviceGuardTest : public ::testing::Test {
 protected:
  int current() { return devices_->current_device(); }
  int switches() { return devices_->counts().device_switches; }

  FakeDevices devices_{3};
};

TEST_F(DeviceGuardTest, MakesADeviceCurrentAndRestoresTheOld) {
  devices_->set_current_device(2);
  {
    const DeviceGuard guard(Device::cuda(1));
    EXPECT_EQ(current(), 1);
    {
      const DeviceGuard inner(Device::cuda(0));
      EXPECT_EQ(current(), 0);
    }
    EXPECT_EQ(current(), 1);
  }
  EXPECT_EQ(current(), 2);
}

TEST_F(DeviceGuardTest, RestoresDeviceZeroToo) {
  { const DeviceGuard guard(Device::cuda(2)); }
  EXPECT_EQ(current(), 0);
}

TEST_F(DeviceGuardTest, DoesNothingWhereTheDeviceIsCurrent) {
  { const DeviceGuard guard(Device::cuda(0)); }
  EXPECT_EQ(switches(), 0);
}

TEST_F(DeviceGuardTest, DoesNothingForTheCpu) {
  devices_->fail_next(DeviceCall::current_device);
  { const DeviceGuard guard(Device::cpu()); }
  EXPECT_EQ(switches(), 0);
  EXPECT_THROW((void)current(), Error) << "the failure is still to come: nobody asked";
}

TEST_F(DeviceGuardTest, RestoresWhenTheScopeIsLeftByAnException) {
  try {
    const DeviceGuard guard(Device::cuda(1));
    throw 1;
  } catch (int) {
  }
  EXPECT_EQ(current(), 0);
}

TEST_F(DeviceGuardTest, ReportsAFailureAtItsBeginAndNoneAtItsEnd) {
  devices_->fail_next(DeviceCall::set_current_device);
  expect_error(ErrorCode::Device, {"set_current_device"},
               [] { const DeviceGuard guard(Device::cuda(1)); });
  EXPECT_EQ(current(), 0);
  {
    const DeviceGuard guard(Device::cuda(1));
    devices_->fail_next(DeviceCall::set_current_device);
  }
  EXPECT_EQ(current(), 1) << "the device could not be restored, and nothing was thrown";
}

TEST_F(DeviceGuardTest, IsTheThreadsOwn) {
  const DeviceGuard guard(Device::cuda(1));
  std::thread other([&] {
    EXPECT_EQ(current(), 0);
    const DeviceGuard inner(Device::cuda(2));
    EXPECT_EQ(current(), 2);
  });
  other.join();
  EXPECT_EQ(current(), 1);
}

TEST(DeviceRuntime, IsReplacedForATestAndComesBack) {
  impl::DeviceRuntime* real = &impl::device_runtime();
  {
    FakeDevices devices(1);
    EXPECT_EQ(&impl::device_runtime(), &*devices);
  }
  EXPECT_EQ(&impl::device_runtime(), real);
}

TEST(DeviceRuntime, WithoutDevicesSaysWhyAndNeverPretends) {
  impl::DeviceRuntime& real = impl::device_runtime();
  if (real.device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_FALSE(real.why_unavailable().empty());
  EXPECT_EQ(real.why_unavailable().find('\n'), std::string::npos);
  EXPECT_EQ(real.allocate(256, nullptr), nullptr);
  EXPECT_GE(real.driver_version(), 0);
  EXPECT_GE(real.runtime_version(), 0);
  EXPECT_THROW((void)real.properties(0), Error);
  EXPECT_THROW((void)real.current_device(), Error);
  EXPECT_THROW((void)real.set_current_device(0), Error);
  EXPECT_THROW((void)real.stream_id(nullptr), Error);
  EXPECT_THROW((void)real.synchronize(nullptr), Error);
}

TEST(DeviceProperties, TheArchitectureIsTenTimesTheMajorVersion) {
  impl::DeviceProperties p;
  p.major = 9;
  p.minor = 0;
  EXPECT_EQ(p.arch(), 90);
  p.major = 12;
  p.minor = 1;
  EXPECT_EQ(p.arch(), 121);
}

}  // namespace
}  // namespace batten::testing
