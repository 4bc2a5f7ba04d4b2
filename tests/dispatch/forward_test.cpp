// The way of a call: scratch, the current device, failures, graphs.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

#include "dispatch/dispatch_test.hpp"
#include "dispatch/workspace.hpp"

namespace batten::testing {
namespace {

class ForwardTest : public DispatchTest {
 protected:
  ForwardTest() { native.answers().plan_info.workspace_size = 100 * kKiB; }

  FakeBackend& native = backends_.add("native");
};

// ---- scratch
// ------------------------------------------------------------------------------------------

TEST_F(ForwardTest, LendsThePlansScratch) {
  native.answers().on_run = [&](const RecordedRun& run) {
    EXPECT_TRUE(devices_->owns(run.workspace, 100 * kKiB, 0));
    std::fill_n(static_cast<char*>(run.workspace), 100 * kKiB, 'x');
  };
  TestCall call(good_problem(), kGpu);
  auto a = attention();
  EXPECT_EQ(forward(a, call.raw).workspace_size, 100 * kKiB);
  EXPECT_EQ(native.runs().size(), 1u);
}

TEST_F(ForwardTest, LayersShareTheScratchOfAStream) {
  TestCall call(good_problem(), kGpu);
  call.raw.stream = devices_->create_stream();
  auto first = attention();
  impl::Attention second(good_problem(DType::f16), kGpu, options_of(nullptr));
  TestCall other(good_problem(DType::f16), kGpu);
  other.raw.stream = call.raw.stream;
  (void)forward(first, call.raw);
  (void)forward(second, other.raw);
  EXPECT_EQ(devices_->counts().allocations, 1);
  EXPECT_EQ(native.runs()[0].workspace, native.runs()[1].workspace);
}

TEST_F(ForwardTest, APlanWithoutScratchNeedsNoPool) {
  native.answers().plan_info.workspace_size = 0;
  TestCall call(good_problem(), kGpu);
  auto a = attention();
  EXPECT_EQ(a.prepare(call.raw), 0u);
  (void)forward(a, call.raw);
  EXPECT_EQ(devices_->counts().allocations, 0);
  EXPECT_EQ(native.runs()[0].workspace, nullptr);
}

TEST_F(ForwardTest, TheCallersScratchIsUsedAndThePoolIsNot) {
  TestCall call(good_problem(), kGpu);
  call.raw.workspace = reinterpret_cast<void*>(std::uintptr_t{0x10000});
  call.raw.workspace_size = 100 * kKiB;
  auto a = attention();
  EXPECT_EQ(a.prepare(call.raw), 100 * kKiB);
  (void)forward(a, call.raw);
  EXPECT_EQ(native.runs()[0].workspace, call.raw.workspace);
  EXPECT_EQ(devices_->counts().allocations, 0);
}

TEST_F(ForwardTest, TheCallersScratchMustSuffice) {
  TestCall call(good_problem(), kGpu);
  call.raw.workspace = reinterpret_cast<void*>(std::uintptr_t{0x10000});
  call.raw.workspace_size = 100 * kKiB - 1;
  auto a = attention();
  expect_error(ErrorCode::InvalidArgument,
               {"workspace: 102399 bytes given, this call needs 102400"},
               [&] { (void)forward(a, call.raw); });
  EXPECT_TRUE(native.runs().empty());
}

TEST_F(ForwardTest, TheCallersScratchMayExceedTheCap) {
  native.answers().plan_info.workspace_size = 200 * kMiB;
  TestCall call(good_problem(), kGpu);
  auto a = attention();
  for (const bool preparing : {true, false}) {
    expect_error(ErrorCode::OutOfMemory,
                 {"209715200 bytes", "128 MiB", "give the call a workspace"},
                 [&] { preparing ? (void)a.prepare(call.raw) : (void)forward(a, call.raw); });
  }
  EXPECT_TRUE(native.runs().empty());
  call.raw.workspace = reinterpret_cast<void*>(std::uintptr_t{0x10000});
  call.raw.workspace_size = 200 * kMiB;
  EXPECT_EQ(a.prepare(call.raw), 200 * kMiB) << "so that a caller learns what to give";
  EXPECT_NO_THROW((void)forward(a, call.raw));
}

TEST_F(ForwardTest, TheEndOfMemoryIsAnErrorAndNotTheEnd) {
  TestCall call(good_problem(), kGpu);
  auto a = attention();
  devices_->limit_memory(kKiB);
  for (const bool preparing : {true, false}) {
    expect_error(ErrorCode::OutOfMemory, {"131072 bytes", "cuda:0"},
                 [&] { preparing ? (void)a.prepare(call.raw) : (void)forward(a, call.raw); });
  }
  EXPECT_TRUE(native.runs().empty());
  devices_->limit_memory(kMiB);
  EXPECT_NO_THROW((void)forward(a, call.raw));
}

// ---- prepare
// ------------------------------------------------------------------------------------------

TEST_F(ForwardTest, AfterPrepareItNeitherAllocatesNorSynchronises) {
  const auto base = [](int kind) {
    std::unique_ptr<TestCall> call;
    if (kind == 1) {
      call = TestCall::packed(good_problem(), kGpu, {0, 3, 8}, {1, 5, 11});
    } else if (kind == 2) {
      call = TestCall::packed(good_problem(), kGpu, {0, 3, 8}, {1, 5, 11});
      call->offsets_on_device(5, 6);
    } else {
      call = std::make_unique<TestCall>(good_problem(), kGpu);
      if (kind == 3) call->with_kv_lengths({1, 2}).with_q_lengths({3, 4}, true);
    }
    call->with_lse();
    return call;
  };
  for (int kind = 0; kind < 4; ++kind) {
    const auto call = base(kind);
    call->raw.stream = devices_->create_stream();
    auto a = attention();
    EXPECT_EQ(a.prepare(call->raw), 100 * kKiB);
    const DeviceCounts before = devices_->counts();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(forward(a, call->raw).plan_reused, 1) << kind;
    const DeviceCounts after = devices_->counts();
    EXPECT_EQ(after.allocations, before.allocations) << kind;
    EXPECT_EQ(after.frees, before.frees) << kind;
    EXPECT_EQ(after.synchronous_frees, before.synchronous_frees) << kind;
    EXPECT_EQ(after.synchronisations, 0) << kind;
    EXPECT_EQ(after.copies, 0) << kind;
  }
  EXPECT_EQ(native.plans_built(), 4);
}

TEST_F(ForwardTest, PrepareReadsNoTensor) {
  TestCall call(good_problem(), kGpu);
  const TestCall with_memory(good_problem(), kGpu);
  for (batten_tensor* t : {&call.q, &call.k, &call.v, &call.out}) t->data = nullptr;
  auto a = attention();
  (void)a.prepare(call.raw);
  EXPECT_EQ(forward(a, with_memory.raw).plan_reused, 1);
  expect_error(ErrorCode::InvalidArgument, {"q: null data pointer"},
               [&] { (void)forward(a, call.raw); });
}

// ---- the current device
// -------------------------------------------------------------------------------

TEST_F(ForwardTest, RunsOnItsDeviceAndRestoresTheCallers) {
  TestCall call(good_problem(), Device::cuda(1));
  auto a = attention(nullptr, Device::cuda(1));
  native.answers().on_plan = [&] { EXPECT_EQ(devices_->current_device(), 1); };
  for (const int current : {0, 1}) {
    devices_->set_current_device(current);
    (void)a.prepare(call.raw);
    EXPECT_EQ(devices_->current_device(), current);
    (void)forward(a, call.raw);
    EXPECT_EQ(devices_->current_device(), current);
    EXPECT_EQ(native.runs().back().current_device, 1);
  }
}

TEST_F(ForwardTest, LeavesTheCurrentDeviceAloneWhereItIsTheRightOne) {
  TestCall call(good_problem(), Device::cuda(1));
  auto a = attention(nullptr, Device::cuda(1));
  devices_->set_current_device(1);
  const int before = devices_->counts().device_switches;
  (void)a.prepare(call.raw);
  (void)forward(a, call.raw);
  EXPECT_EQ(devices_->counts().device_switches, before);
  TestCall on_cpu(good_problem());
  auto cpu = attention(nullptr, Device::cpu());
  (void)forward(cpu, on_cpu.raw);
  EXPECT_EQ(devices_->counts().device_switches, before);
}

TEST_F(ForwardTest, RestoresTheDeviceOnEveryFailure) {
  TestCall call(good_problem(), Device::cuda(1));
  const Device device = Device::cuda(1);
  devices_->set_current_device(0);
  const auto fails = [&](const char* what) {
    auto a = attention(nullptr, device);
    EXPECT_THROW((void)forward(a, call.raw), std::exception) << what;
    EXPECT_EQ(devices_->current_device(), 0) << what;
  };
  native.answers().on_plan = [] { throw Error(ErrorCode::Internal, "plan"); };
  fails("plan");
  native.answers().on_plan = nullptr;
  native.answers().on_run = [](const RecordedRun&) { throw std::runtime_error("run"); };
  fails("run");
  native.answers().on_run = nullptr;
  native.refuse_shapes("no");
  fails("shape");
  native.answers().why_not_shape = nullptr;
  devices_->limit_memory(1);
  impl::WorkspacePool::instance().trim();
  fails("memory");
  devices_->limit_memory(SIZE_MAX);
  devices_->fail_next(DeviceCall::is_capturing);
  fails("stream");
  devices_->fail_next(DeviceCall::set_current_device);
  fails("device");
  call.q.data = nullptr;
  fails("input");
}

TEST_F(ForwardTest, AFailedRunGivesItsScratchBack) {
  native.answers().on_run = [](const RecordedRun&) {
    throw Error(ErrorCode::Device, "launch failed");
  };
  for (const Device device : {kGpu, Device::cpu()}) {
    TestCall call(good_problem(), device);
    auto a = attention(nullptr, device);
    for (int i = 0; i < 3; ++i) {
      expect_error(ErrorCode::Device, {"launch failed"}, [&] { (void)forward(a, call.raw); });
    }
  }
  EXPECT_EQ(devices_->counts().allocations, 1);
  const auto runs = native.runs();
  ASSERT_EQ(runs.size(), 6u);
  EXPECT_EQ(runs[0].workspace, runs[2].workspace);
  EXPECT_EQ(runs[3].workspace, runs[5].workspace);
}

// ---- nothing to do
// ------------------------------------------------------------------------------------

TEST_F(ForwardTest, ACallWithoutARowRunsNothingAndStillHasAReceipt) {
  const auto nothing = [&](TestCall& call) {
    auto a = attention();
    call.raw.workspace = reinterpret_cast<void*>(std::uintptr_t{0x100});  // too small, and unused
    call.raw.workspace_size = 1;
    EXPECT_STREQ(forward(a, call.raw).backend, "native");
    EXPECT_TRUE(native.runs().empty());
  };
  TestCall no_samples(good_problem(), kGpu, {0, 5, 7});
  TestCall no_queries(good_problem(), kGpu, {2, 0, 7});
  nothing(no_samples);
  nothing(no_queries);
  nothing(*TestCall::packed(good_problem(), kGpu, {0, 0, 0}, {0, 2, 7}));
  nothing(*TestCall::packed(good_problem(), kGpu, {3}, {9}));
}

TEST_F(ForwardTest, ACallWithoutAKeyRuns) {
  TestCall no_keys(good_problem(), kGpu, {2, 5, 0});
  auto a = attention();
  (void)forward(a, no_keys.raw);
  EXPECT_EQ(native.runs().size(), 1u) << "its rows must be written";
  const auto ragged = TestCall::packed(good_problem(), kGpu, {0, 0, 3}, {0, 0, 0});
  (void)forward(a, ragged->raw);
  EXPECT_EQ(native.runs().size(), 2u);
}

// ---- graphs
// -------------------------------------------------------------------------------------------

TEST_F(ForwardTest, CanBeCaptured) {
  TestCall call(good_problem(), kGpu);
  call.with_kv_lengths({1, 2}, true);
  call.raw.stream = devices_->create_stream();
  auto a = attention();
  (void)a.prepare(call.raw);
  devices_->begin_capture(call.raw.stream);
  (void)forward(a, call.raw);
  EXPECT_EQ(devices_->counts().graph_allocations, 0) << "replays do not allocate";
  EXPECT_EQ(devices_->counts().frees, 0);
  EXPECT_EQ(devices_->counts().allocations, 2);
  call.raw.workspace = reinterpret_cast<void*>(std::uintptr_t{0x10000});
  call.raw.workspace_size = 100 * kKiB;
  (void)forward(a, call.raw);
  EXPECT_EQ(devices_->counts().allocations, 2) << "the caller's scratch needs no node";
  devices_->end_capture(call.raw.stream);
  EXPECT_EQ(devices_->counts().synchronisations, 0);
  EXPECT_NE(native.runs()[0].workspace, native.runs()[1].workspace);
  EXPECT_TRUE(native.runs()[1].call.capturing);
  (void)forward(a, call.raw);
  EXPECT_FALSE(native.runs()[2].call.capturing);
}

// ---- time
// ---------------------------------------------------------------------------------------------

TEST_F(ForwardTest, AddsLittleToAPreparedCall) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take their time";
#endif
  // A sanity bound against accidents (a plan built each time, a scan); benchmarks measure.
  using Clock = std::chrono::steady_clock;
  TestCall call(good_problem(), kGpu);
  auto a = attention();
  (void)a.prepare(call.raw);
  std::vector<Clock::duration> times(999);
  for (auto& time : times) {
    const auto start = Clock::now();
    (void)forward(a, call.raw);
    time = Clock::now() - start;
  }
  std::nth_element(times.begin(), times.begin() + 499, times.end());
  EXPECT_LT(times[499], std::chrono::microseconds(50));
}

}  // namespace
}  // namespace batten::testing
