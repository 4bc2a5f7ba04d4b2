// Several threads in one attention at once.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "dispatch/dispatch_test.hpp"
#include "dispatch/plan_cache.hpp"
#include "dispatch/workspace.hpp"
#include "fakes/meeting.hpp"

namespace batten::testing {
namespace {

constexpr std::size_t kScratch = 70'000;  // bytes

class ConcurrencyTest : public DispatchTest {
 protected:
  ConcurrencyTest() { native.answers().plan_info.workspace_size = kScratch; }

  static void run_threads(int count, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
    for (std::thread& thread : threads) thread.join();
  }

  // `count` calls that are all in the backend at once, each through its own stream.
  void expect_apart(impl::Attention& a, Device device, int count, bool with_streams) {
    Meeting inside(count);
    std::mutex mutex;
    std::set<void*> workspaces;
    native.answers().on_run = [&](const RecordedRun& run) {
      {
        const std::lock_guard lock(mutex);
        workspaces.insert(run.workspace);
      }
      EXPECT_TRUE(inside.arrive_and_wait()) << "calls wait for each other";
    };
    std::vector<impl::Stream> streams(static_cast<std::size_t>(count));
    if (with_streams) {
      for (impl::Stream& stream : streams) stream = devices_->create_stream(device.index);
    }
    run_threads(count, [&](int i) {
      TestCall call(good_problem(), device);
      call.raw.stream = streams[static_cast<std::size_t>(i)];
      (void)forward(a, call.raw);
    });
    native.answers().on_run = nullptr;
    EXPECT_EQ(workspaces.size(), static_cast<std::size_t>(count)) << "scratch was shared";
  }

  FakeBackend& native = backends_.add("native");
};

TEST_F(ConcurrencyTest, CallsOnTheCpuRunTogetherWithoutSharedScratch) {
  auto a = attention(nullptr, Device::cpu());
  expect_apart(a, Device::cpu(), 2, false);
  expect_apart(a, Device::cpu(), 4, false);
}

TEST_F(ConcurrencyTest, CallsOnTwoStreamsRunTogetherWithoutSharedScratch) {
  auto a = attention();
  expect_apart(a, kGpu, 2, true);
  expect_apart(a, kGpu, 4, true);
}

TEST_F(ConcurrencyTest, CallsOnTwoDevicesRunTogetherWithoutSharedScratch) {
  auto zero = attention(nullptr, Device::cuda(0));
  auto one = attention(nullptr, Device::cuda(1));
  Meeting inside(2);
  native.answers().on_run = [&](const RecordedRun& run) {
    EXPECT_TRUE(inside.arrive_and_wait());
    EXPECT_TRUE(devices_->owns(run.workspace, kScratch, run.current_device));
  };
  run_threads(2, [&](int i) {
    TestCall call(good_problem(), Device::cuda(i));
    (void)forward(i == 0 ? zero : one, call.raw);
  });
  EXPECT_NE(native.runs()[0].workspace, native.runs()[1].workspace);
}

TEST_F(ConcurrencyTest, CallsOnOneStreamQueueOneAfterTheOtherOnOneBlock) {
  impl::Stream stream = devices_->create_stream();
  std::atomic<int> inside = 0;
  native.answers().on_run = [&](const RecordedRun& run) {
    EXPECT_EQ(++inside, 1) << "launches on shared scratch mixed";
    std::memset(run.workspace, 1, kScratch);
    std::this_thread::yield();
    --inside;
  };
  auto a = attention();
  auto b = attention();
  run_threads(4, [&](int i) {
    TestCall call(good_problem(), kGpu);
    call.raw.stream = stream;
    for (int n = 0; n < 20; ++n) (void)forward(i % 2 == 0 ? a : b, call.raw);
  });
  EXPECT_EQ(devices_->counts().allocations, 1);
  EXPECT_EQ(native.runs().size(), 80u);
}

TEST_F(ConcurrencyTest, OneThreadPlansWhatManyWant) {
  native.answers().on_plan = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  auto a = attention();
  std::atomic<int> fresh = 0;
  Meeting start(8);
  std::vector<impl::Stream> streams(8);
  for (impl::Stream& stream : streams) stream = devices_->create_stream();
  run_threads(8, [&](int i) {
    TestCall call(good_problem(), kGpu);
    call.raw.stream = streams[static_cast<std::size_t>(i)];
    (void)start.arrive_and_wait();
    fresh += forward(a, call.raw).plan_reused == 0 ? 1 : 0;
  });
  EXPECT_EQ(native.plans_built(), 1);
  EXPECT_EQ(fresh, 1) << "the one that built it";
  EXPECT_EQ(native.runs().size(), 8u);
}

// Everything at once: shapes, streams, the CPU, trims, a cache that forgets. Each call writes its
// own mark into its scratch and finds it there.
TEST_F(ConcurrencyTest, SurvivesEverythingAtOnce) {
  std::atomic<int> marks = 0;
  native.answers().on_run = [&](const RecordedRun& run) {
    const int mark = ++marks & 0x7f;
    std::memset(run.workspace, mark, kScratch);
    std::this_thread::yield();
    const auto* bytes = static_cast<const unsigned char*>(run.workspace);
    EXPECT_TRUE(std::all_of(bytes, bytes + kScratch, [&](int byte) { return byte == mark; }))
        << "another call wrote into this one's scratch";
    EXPECT_EQ(run.shape.max_q * 3, run.shape.max_kv) << "the shape is another call's";
  };
  auto on_gpu = attention();
  auto on_cpu = attention(nullptr, Device::cpu());
  std::vector<impl::Stream> streams(3);
  for (impl::Stream& stream : streams) stream = devices_->create_stream();
  run_threads(6, [&](int thread) {
    for (int i = 0; i < 60; ++i) {
      const std::int64_t length = 1 + (i * 5 + thread) % 13;  // more than an attention remembers
      const Device device = thread % 3 == 2 ? Device::cpu() : kGpu;
      TestCall call(good_problem(), device, {1, length, 3 * length});
      call.raw.stream = streams[static_cast<std::size_t>((thread + i) % 3)];
      (void)forward(device.is_cpu() ? on_cpu : on_gpu, call.raw);
      if (i % 10 == thread) impl::WorkspacePool::instance().trim();
      if (i % 20 == thread) impl::PlanCache::instance().clear();
    }
  });
  EXPECT_EQ(native.runs().size(), 360u);
  const auto pools = impl::WorkspacePool::instance().statistics();
  std::size_t pooled = 0;
  for (const auto& pool : pools) pooled += pool.device.is_cpu() ? 0 : pool.bytes;
  EXPECT_EQ(devices_->bytes_in_use(), pooled) << "a retired block was lost";
}

}  // namespace
}  // namespace batten::testing
