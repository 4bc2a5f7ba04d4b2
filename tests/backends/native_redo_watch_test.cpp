// When a plan's calls had better be online, by counts that a test writes in the kernels' place.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "backends/native/redo_watch.hpp"

namespace batten::impl::native {
namespace {

constexpr std::int64_t kWindow = RedoWatch::kWindow;
constexpr auto kMost = static_cast<std::uint64_t>(RedoWatch::kMostRedone * kWindow);

TEST(RedoWatch, SaysNothingWhileNothingIsRedone) {
  RedoCounts counts;
  RedoWatch watch(counts, true);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(watch.call(kWindow));
  EXPECT_EQ(watch.remark(), "");
}

TEST(RedoWatch, CountsFromItsBeginning) {
  RedoCounts counts{.of_calls = 1000, .of_graphs = 500};
  RedoWatch watch(counts, true);
  EXPECT_EQ(watch.remark(), "");
  EXPECT_FALSE(watch.call(100));
  counts.of_calls += 7;
  EXPECT_EQ(watch.remark(), "7 tiles redone so far");
  counts.of_graphs += 3;
  EXPECT_EQ(watch.remark(), "10 tiles redone so far");
}

TEST(RedoWatch, SwitchesAboveTheShareAndStays) {
  RedoCounts counts;
  RedoWatch watch(counts, true);
  EXPECT_FALSE(watch.call(kWindow));
  counts.of_calls += kMost;
  EXPECT_FALSE(watch.call(kWindow)) << "not more than the share";
  counts.of_calls += kMost + 1;
  EXPECT_FALSE(watch.online());
  EXPECT_TRUE(watch.call(kWindow));
  EXPECT_TRUE(watch.online());
  EXPECT_EQ(watch.remark(), "online since 1025 of 8192 tiles were redone");
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(watch.call(kWindow));
  EXPECT_EQ(watch.remark(), "online since 1025 of 8192 tiles were redone");
}

TEST(RedoWatch, LooksAtWholeWindows) {
  RedoCounts counts;
  RedoWatch watch(counts, true);
  // A call or two of bad luck are no share yet.
  EXPECT_FALSE(watch.call(10));
  counts.of_calls += 10;
  EXPECT_FALSE(watch.call(10));
  for (std::int64_t tiles = 20; tiles < 2 * kWindow; tiles += 10) EXPECT_FALSE(watch.call(10));
  // Old windows are forgotten.
  counts.of_calls += kMost - 10;
  EXPECT_FALSE(watch.call(kWindow));
}

TEST(RedoWatch, GraphsDoNotDecide) {
  RedoCounts counts;
  RedoWatch watch(counts, true);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(watch.call(kWindow));
    counts.of_graphs += kWindow;
  }
  EXPECT_EQ(watch.remark(), "40960 tiles redone so far");
}

TEST(RedoWatch, NeverSwitchesWhereItMayNot) {
  RedoCounts counts;
  RedoWatch watch(counts, false);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(watch.call(kWindow));
    counts.of_calls += kWindow;
  }
  EXPECT_FALSE(watch.online());
}

TEST(RedoWatch, CountsMayRunOver) {
  RedoCounts counts{.of_calls = ~std::uint64_t{0}};
  RedoWatch watch(counts, true);
  EXPECT_FALSE(watch.call(kWindow));
  counts.of_calls += 5;
  EXPECT_EQ(watch.remark(), "5 tiles redone so far");
  EXPECT_FALSE(watch.call(kWindow));
}

TEST(RedoWatch, ManyThreadsAtOnce) {
  RedoCounts counts;
  RedoWatch watch(counts, true);
  std::atomic<int> switched{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      bool online = false;
      for (int n = 0; n < 1000; ++n) {
        std::atomic_ref(counts.of_calls).fetch_add(100, std::memory_order_relaxed);
        const bool now = watch.call(200);
        EXPECT_FALSE(online && !now);
        online = now;
        EXPECT_FALSE(watch.remark().empty());
      }
      switched += online;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(switched, 4);
}

}  // namespace
}  // namespace batten::impl::native
