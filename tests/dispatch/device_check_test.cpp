// BATTEN_CHECK: device lengths are read back and judged, and faults are reported where they happen.
#include "dispatch/dispatch_test.hpp"

namespace batten::testing {
namespace {

class DeviceCheckTest : public DispatchTest {
 protected:
  impl::Attention checking(Device device = kGpu) {
    const ScopedVariable check("BATTEN_CHECK", "1");
    return attention(nullptr, device);
  }

  FakeBackend& native = backends_.add("native");
};

TEST_F(DeviceCheckTest, WithoutItNothingIsReadBack) {
  for (const char* value : {"", "0", "off"}) {
    const ScopedVariable check("BATTEN_CHECK", value);
    auto a = attention();
    TestCall call(good_problem(), kGpu);
    call.with_kv_lengths({3, 1000}, true);  // wrong; the kernel clamps it
    EXPECT_NO_THROW((void)forward(a, call.raw));
  }
  EXPECT_EQ(devices_->counts().synchronisations, 0);
  EXPECT_EQ(devices_->counts().copies, 0);
  EXPECT_EQ(native.runs().size(), 3u);
}

TEST_F(DeviceCheckTest, GoodLengthsPassAndTheCallIsWaitedFor) {
  auto a = checking();
  TestCall call(good_problem(), kGpu);
  call.with_q_lengths({5, 0}, true).with_kv_lengths({0, 7}, true);
  EXPECT_NO_THROW((void)forward(a, call.raw));
  EXPECT_EQ(devices_->counts().copies, 2);
  EXPECT_EQ(devices_->counts().synchronisations, 2) << "for the lengths, and for the kernel";
  ASSERT_EQ(native.runs().size(), 1u);
  EXPECT_EQ(native.runs()[0].call.kv_lengths, call.kv_length_values.data())
      << "the kernel gets the device's array, not the copy";
}

TEST_F(DeviceCheckTest, BadDeviceArraysAreReportedAndNothingRuns) {
  auto a = checking();
  const auto bad = [&](std::initializer_list<std::string_view> fragments, TestCall& call) {
    expect_error(ErrorCode::InvalidArgument, fragments, [&] { (void)forward(a, call.raw); });
    EXPECT_TRUE(native.runs().empty());
  };
  {
    TestCall call(good_problem(), kGpu);
    bad({"kv_lengths[1] is 8", "expected 0 to 7"}, call.with_kv_lengths({7, 8}, true));
  }
  {
    TestCall call(good_problem(), kGpu);
    bad({"q_lengths[0] is -1"}, call.with_q_lengths({-1, 8}, true));
  }
  {
    const auto call = TestCall::packed(good_problem(), kGpu, {0, 3, 8}, {0, 5, 9});
    call->offset_q_values = {0, 5, 4};
    bad({"offsets_q[2] is 4 after 5"}, call->offsets_on_device(5, 5));
  }
  {
    const auto call = TestCall::packed(good_problem(), kGpu, {0, 3, 8}, {0, 5, 9});
    call->offset_kv_values = {0, 5, 10};
    bad({"offsets_kv[2] is 10, past the end"}, call->offsets_on_device(5, 5));
  }
  {
    const auto call = TestCall::packed(good_problem(), kGpu, {0, 3, 8}, {0, 5, 9});
    bad({"max_q is 4, but sample 1 has 5 tokens"}, call->offsets_on_device(4, 5));
  }
  {
    const auto call = TestCall::packed(good_problem(), kGpu, {0, 3, 8}, {0, 5, 9});
    call->with_kv_lengths({6, 1}, true);
    bad({"length 6 of sample 0", "5 rows"}, call->offsets_on_device(5, 5));
  }
}

TEST_F(DeviceCheckTest, HostArraysNeedNoCopy) {
  auto a = checking();
  TestCall call(good_problem(), kGpu);
  call.with_kv_lengths({3, 7});
  EXPECT_NO_THROW((void)forward(a, call.raw));
  EXPECT_EQ(devices_->counts().copies, 0);
}

TEST_F(DeviceCheckTest, AFaultOfTheKernelIsReportedByItsCall) {
  auto a = checking();
  TestCall call(good_problem(), kGpu);
  devices_->fail_next(DeviceCall::check_last_error);
  expect_error(ErrorCode::Device, {"forward", "illegal memory access"},
               [&] { (void)forward(a, call.raw); });
  devices_->fail_next(DeviceCall::synchronize);
  expect_error(ErrorCode::Device, {"synchronize"}, [&] { (void)forward(a, call.raw); });
  EXPECT_NO_THROW((void)forward(a, call.raw));
}

TEST_F(DeviceCheckTest, AFailedReadBackIsReportedAndTheDeviceRestored) {
  auto a = checking(Device::cuda(1));
  TestCall call(good_problem(), Device::cuda(1));
  call.with_kv_lengths({3, 7}, true);
  devices_->set_current_device(0);
  devices_->fail_next(DeviceCall::copy_to_host);
  expect_error(ErrorCode::Device, {"copy_to_host"}, [&] { (void)forward(a, call.raw); });
  EXPECT_EQ(devices_->current_device(), 0);
  call.kv_length_values = {3, 99};
  call.kv_lengths.data = call.kv_length_values.data();
  expect_error(ErrorCode::InvalidArgument, {"kv_lengths[1] is 99"},
               [&] { (void)forward(a, call.raw); });
  EXPECT_EQ(devices_->current_device(), 0);
}

TEST_F(DeviceCheckTest, AGraphIsNotChecked) {
  // Its lengths are not there yet, and waiting would end the capture.
  auto a = checking();
  TestCall call(good_problem(), kGpu);
  call.with_kv_lengths({3, 99}, true);
  call.raw.stream = devices_->create_stream();
  devices_->begin_capture(call.raw.stream);
  EXPECT_NO_THROW((void)forward(a, call.raw));
  EXPECT_EQ(devices_->counts().copies, 0);
  EXPECT_EQ(native.runs().size(), 1u);
}

TEST_F(DeviceCheckTest, CallsOnTheCpuDoNotAskADevice) {
  auto a = checking(Device::cpu());
  TestCall call(good_problem());
  call.with_kv_lengths({3, 7});
  EXPECT_NO_THROW((void)forward(a, call.raw));
  EXPECT_EQ(devices_->counts().synchronisations, 0);
}

TEST_F(DeviceCheckTest, IsReadAtConstruction) {
  auto unchecked = attention();
  const ScopedVariable check("BATTEN_CHECK", "1");
  TestCall call(good_problem(), kGpu);
  call.with_kv_lengths({3, 99}, true);
  EXPECT_NO_THROW((void)forward(unchecked, call.raw));
}

}  // namespace
}  // namespace batten::testing
