#include "core/thread_pool.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <batten/types.hpp>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

namespace batten::impl {
namespace {

TEST(ThreadPool, EveryIndexOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<int> seen(static_cast<std::size_t>(count), 0);
      parallel_for(count, threads,
                   [&](std::int64_t i, int) { ++seen[static_cast<std::size_t>(i)]; });
      for (const int n : seen) ASSERT_EQ(n, 1);
    }
  }
}

TEST(ThreadPool, SlotsAreNeverShared) {
  constexpr int kThreads = 4;
  std::atomic<int> inside[kThreads] = {};
  std::atomic<bool> shared{false};
  for (int round = 0; round < 10; ++round) {
    parallel_for(64, kThreads, [&](std::int64_t, int slot) {
      ASSERT_GE(slot, 0);
      ASSERT_LT(slot, kThreads);
      if (inside[slot].fetch_add(1) != 0) shared = true;
      std::this_thread::yield();
      inside[slot].fetch_sub(1);
    });
  }
  EXPECT_FALSE(shared);
}

TEST(ThreadPool, UsesTheThreadsAskedFor) {
  // Each iteration waits for the other, so one thread alone would never finish.
  std::atomic<int> arrived{0};
  parallel_for(2, 2, [&](std::int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

TEST(ThreadPool, ManyCallersAtOnce) {
  std::vector<std::thread> callers;
  std::atomic<std::int64_t> total{0};
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        std::vector<std::int64_t> results(37, 0);
        parallel_for(37, 3, [&](std::int64_t i, int) { results[static_cast<std::size_t>(i)] = i; });
        for (const std::int64_t r : results) total += r;
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(total, 6 * 100 * (36 * 37 / 2));
}

TEST(ThreadPool, LoopsInLoops) {
  std::atomic<int> count{0};
  parallel_for(8, 4,
               [&](std::int64_t, int) { parallel_for(8, 4, [&](std::int64_t, int) { ++count; }); });
  EXPECT_EQ(count, 64);
}

TEST(ThreadPool, ThrowsWhatAnIterationThrew) {
  for (const int threads : {1, 3}) {
    EXPECT_THROW(parallel_for(100, threads,
                              [](std::int64_t i, int) {
                                if (i == 17) throw std::runtime_error("seventeen");
                              }),
                 std::runtime_error);
    int after = 0;
    parallel_for(1, threads, [&](std::int64_t, int) { ++after; });
    EXPECT_EQ(after, 1);
  }
}

#if !defined(__SANITIZE_THREAD__)
TEST(ThreadPool, WorksInAForkedChild) {
  parallel_for(8, 2, [](std::int64_t, int) {});  // the parent has workers, the child has none
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> count{0};
    parallel_for(100, 2, [&](std::int64_t, int) { ++count; });
    _exit(count == 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

TEST(ThreadPool, DefaultFollowsTheEnvironment) {
  ASSERT_EQ(unsetenv("BATTEN_NUM_THREADS"), 0);
  EXPECT_EQ(default_num_threads(), available_cpus());
  EXPECT_GE(available_cpus(), 1);
  setenv("BATTEN_NUM_THREADS", "3", 1);
  EXPECT_EQ(default_num_threads(), 3);
  for (const char* bad : {"0", "-1", "two", "4x", "100000"}) {
    setenv("BATTEN_NUM_THREADS", bad, 1);
    EXPECT_THROW(default_num_threads(), Error) << bad;
  }
  unsetenv("BATTEN_NUM_THREADS");
}

}  // namespace
}  // namespace batten::impl
