#include "core/log.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "fakes/environment.hpp"

namespace batten::testing {
namespace {

using impl::log;
using impl::log_enabled;

struct Lines {
  std::vector<std::pair<int, std::string>> all;
  static void add(int level, const char* message, void* user) {
    static_cast<Lines*>(user)->all.emplace_back(level, message);
  }
};

class LogTest : public ::testing::Test {
 protected:
  LogTest() { impl::set_log_level(BATTEN_LOG_WARNING); }
  ~LogTest() override {
    impl::set_log_callback(nullptr, nullptr);
    impl::set_log_level(BATTEN_LOG_WARNING);
  }

  Lines lines_;
};

TEST_F(LogTest, TheDefaultSinkIsStderrOneLineAMessage) {
  ::testing::internal::CaptureStderr();
  log(BATTEN_LOG_WARNING, "{} of {}", 1, 2);
  log(BATTEN_LOG_INFO, "not this");
  log(BATTEN_LOG_ERROR, "that");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "[batten] [warning] 1 of 2\n[batten] [error] that\n");
}

TEST_F(LogTest, ACallbackTakesTheSinksPlace) {
  impl::set_log_callback(Lines::add, &lines_);
  ::testing::internal::CaptureStderr();
  log(BATTEN_LOG_WARNING, "{}", "to the callback");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(lines_.all.size(), 1u);
  EXPECT_EQ(lines_.all[0], std::pair(int{BATTEN_LOG_WARNING}, std::string("to the callback")));
}

TEST_F(LogTest, AMessageIsOneLine) {
  impl::set_log_callback(Lines::add, &lines_);
  log(BATTEN_LOG_ERROR, "{}", "two\nlines\r\n");
  ASSERT_EQ(lines_.all.size(), 1u);
  EXPECT_EQ(lines_.all[0].second.find_first_of("\r\n"), std::string::npos);
}

TEST_F(LogTest, BracesInAMessageAreText) {
  impl::set_log_callback(Lines::add, &lines_);
  impl::log_line(BATTEN_LOG_ERROR, "{} {0} %s");
  ASSERT_EQ(lines_.all.size(), 1u);
  EXPECT_EQ(lines_.all[0].second, "{} {0} %s");
}

TEST_F(LogTest, LevelsOutsideTheEnumerationAreClamped) {
  impl::set_log_level(-5);
  EXPECT_TRUE(log_enabled(BATTEN_LOG_DEBUG));
  impl::set_log_level(99);
  EXPECT_FALSE(log_enabled(BATTEN_LOG_ERROR));
}

TEST_F(LogTest, OffIsALevelToSetAndNotOneToSay) {
  impl::set_log_callback(Lines::add, &lines_);
  for (const int level : {BATTEN_LOG_DEBUG, BATTEN_LOG_OFF}) {
    impl::set_log_level(level);
    EXPECT_FALSE(log_enabled(BATTEN_LOG_OFF));
    impl::log_line(BATTEN_LOG_OFF, "never");
  }
  EXPECT_TRUE(lines_.all.empty());
}

TEST_F(LogTest, ACallbackMayLogAndReplaceItself) {
  struct Nested {
    static void first(int, const char*, void* user) {
      impl::set_log_callback(Lines::add, user);
      log(BATTEN_LOG_ERROR, "from within");
    }
  };
  impl::set_log_callback(Nested::first, &lines_);
  log(BATTEN_LOG_ERROR, "begin");
  ASSERT_EQ(lines_.all.size(), 1u);
  EXPECT_EQ(lines_.all[0].second, "from within");
}

TEST_F(LogTest, ManyThreadsMayLog) {
  std::atomic<int> count = 0;
  impl::set_log_callback(
      [](int, const char* message, void* user) {
        if (std::string(message) == "a whole line") ++*static_cast<std::atomic<int>*>(user);
      },
      &count);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int n = 0; n < 100; ++n) log(BATTEN_LOG_ERROR, "a {} line", "whole");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 400);
}

// The variable is read once, at the first look: each value needs a process of its own.
TEST(LogLevelDeathTest, TheDefaultIsAVariable) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::pair<const char*, int> all[] = {
      {"debug", 0}, {"info", 1}, {"warning", 2}, {"error", 3}, {"off", 4}, {"", 2}, {"loud", 2}};
  for (const auto& [text, expected] : all) {
    const ScopedVariable variable("BATTEN_LOG_LEVEL", text);
    EXPECT_EXIT(
        {
          int least = BATTEN_LOG_DEBUG;
          while (least < BATTEN_LOG_OFF && !log_enabled(static_cast<batten_log_level>(least))) {
            ++least;
          }
          std::_Exit(100 + least);
        },
        ::testing::ExitedWithCode(100 + expected), "")
        << text;
  }
}

TEST(LogLevelDeathTest, AnUnknownValueIsNotIgnoredInSilence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ScopedVariable variable("BATTEN_LOG_LEVEL", "loud");
  EXPECT_EXIT(std::_Exit(log_enabled(BATTEN_LOG_WARNING) ? 0 : 1), ::testing::ExitedWithCode(0),
              "BATTEN_LOG_LEVEL=loud: expected debug, info, warning, error or off");
}

}  // namespace
}  // namespace batten::testing
