#include "core/env.hpp"

#include <gtest/gtest.h>

#include "fakes/environment.hpp"
#include "fakes/expect_error.hpp"

namespace batten::testing {
namespace {

using impl::environment;
using impl::environment_flag;
using impl::environment_int;

constexpr const char* kName = "BATTEN_TEST_VARIABLE";

TEST(Environment, UnsetAndEmptyAreTheSame) {
  for (const std::optional<std::string>& value : {std::optional<std::string>(), {""}}) {
    const ScopedVariable variable(kName, value);
    EXPECT_EQ(environment(kName), std::nullopt);
    EXPECT_EQ(environment_int(kName, 0, 9), std::nullopt);
    EXPECT_TRUE(environment_flag(kName, true));
    EXPECT_FALSE(environment_flag(kName, false));
  }
}

TEST(Environment, AValueIsTakenAsItIs) {
  const ScopedVariable variable(kName, " a b ");
  EXPECT_EQ(environment(kName), " a b ");
}

TEST(EnvironmentInt, TakesWholeNumbersWithinTheRange) {
  const std::pair<const char*, std::int64_t> good[] = {{"0", 0},     {"7", 7},       {"-7", -7},
                                                       {"100", 100}, {"-100", -100}, {"007", 7}};
  for (const auto& [text, number] : good) {
    const ScopedVariable variable(kName, text);
    EXPECT_EQ(environment_int(kName, -100, 100), number) << text;
  }
  const ScopedVariable variable(kName, "9223372036854775807");
  EXPECT_EQ(environment_int(kName, 0, INT64_MAX), INT64_MAX);
}

TEST(EnvironmentInt, RefusesAllElseWithNameValueAndRange) {
  for (const char* text : {"101", "-101", "x", "1x", "1.5", "1e2", " 1", "1 ", "+1", "0x10", "--1",
                           "9223372036854775808", "99999999999999999999"}) {
    const ScopedVariable variable(kName, text);
    expect_error(ErrorCode::InvalidArgument,
                 {"BATTEN_TEST_VARIABLE=" + std::string(text), "whole number from -100 to 100"},
                 [] { (void)environment_int(kName, -100, 100); });
  }
}

TEST(EnvironmentFlag, KnowsYesAndNo) {
  for (const char* yes : {"1", "true", "yes", "on"}) {
    const ScopedVariable variable(kName, yes);
    EXPECT_TRUE(environment_flag(kName, false)) << yes;
  }
  for (const char* no : {"0", "false", "no", "off"}) {
    const ScopedVariable variable(kName, no);
    EXPECT_FALSE(environment_flag(kName, true)) << no;
  }
}

TEST(EnvironmentFlag, RefusesAllElse) {
  for (const char* text : {"2", "maybe", "y", "1 ", "-1", "01"}) {
    const ScopedVariable variable(kName, text);
    expect_error(ErrorCode::InvalidArgument,
                 {"BATTEN_TEST_VARIABLE=" + std::string(text), "1 or 0"},
                 [] { (void)environment_flag(kName, true); });
  }
}

}  // namespace
}  // namespace batten::testing
