// The log callback and level of the C ABI.
#include "core/log.hpp"

#include <string>
#include <vector>

#include "capi/capi_test.hpp"

namespace batten::testing {
namespace {

struct Lines {
  std::vector<std::pair<int, std::string>> all;
  static void add(int level, const char* message, void* user) {
    static_cast<Lines*>(user)->all.emplace_back(level, message);
  }
};

class CapiLogTest : public CapiTest {};

TEST_F(CapiLogTest, ACallSaysOnceWhatItTook) {
  Lines lines;
  batten_set_log_callback(Lines::add, &lines);
  batten_set_log_level(BATTEN_LOG_INFO);
  const Handle attention = create();
  ASSERT_EQ(batten_forward(attention.get(), &call_.raw, nullptr), BATTEN_OK);
  ASSERT_EQ(batten_forward(attention.get(), &call_.raw, nullptr), BATTEN_OK);
  ASSERT_EQ(lines.all.size(), 1u);
  EXPECT_EQ(lines.all[0].first, BATTEN_LOG_INFO);
  expect_message(lines.all[0].second,
                 std::vector<std::string>{"cuda:0", "native", "fake_kernel", "dense", "auto"});
}

TEST_F(CapiLogTest, TheLevelDecidesWhatIsSaid) {
  Lines lines;
  batten_set_log_callback(Lines::add, &lines);
  const batten_log_level levels[] = {BATTEN_LOG_DEBUG, BATTEN_LOG_INFO, BATTEN_LOG_WARNING,
                                     BATTEN_LOG_ERROR};
  for (int least = BATTEN_LOG_DEBUG; least <= BATTEN_LOG_OFF; ++least) {
    batten_set_log_level(least);
    lines.all.clear();
    for (const batten_log_level level : levels) impl::log(level, "level {}", int{level});
    EXPECT_EQ(lines.all.size(), static_cast<std::size_t>(BATTEN_LOG_OFF - least));
    for (const auto& [level, message] : lines.all) {
      EXPECT_GE(level, least);
      EXPECT_EQ(message, "level " + std::to_string(level));
    }
  }
}

TEST_F(CapiLogTest, NullRestoresTheDefault) {
  Lines lines;
  batten_set_log_callback(Lines::add, &lines);
  batten_set_log_callback(nullptr, nullptr);
  ::testing::internal::CaptureStderr();
  impl::log(BATTEN_LOG_ERROR, "to {}", "stderr");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("to stderr"), std::string::npos);
  EXPECT_TRUE(lines.all.empty());
}

}  // namespace
}  // namespace batten::testing
