// Errors: their code, and the one line that says what, where and what to do.
#pragma once

#include <gtest/gtest.h>

#include <batten/types.hpp>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace batten::testing {

// Every fragment is in the message, and the message is one short line.
template <class Fragments>
void expect_message(std::string_view message, const Fragments& fragments) {
  for (const std::string_view fragment : fragments) {
    EXPECT_NE(message.find(fragment), std::string_view::npos)
        << "no '" << fragment << "' in: " << message;
  }
  EXPECT_EQ(message.find_first_of("\r\n"), std::string_view::npos) << message;
  EXPECT_LT(message.size(), 400u) << message;
}

// Runs `action`, which must throw batten::Error with this code; returns the message.
template <class Action>
std::string expect_error(ErrorCode code, std::initializer_list<std::string_view> fragments,
                         Action&& action) {
  try {
    std::forward<Action>(action)();
  } catch (const Error& error) {
    EXPECT_STREQ(name_of(error.code()), name_of(code)) << error.what();
    expect_message(error.what(), fragments);
    return error.what();
  }
  ADD_FAILURE() << "no batten::Error was thrown";
  return {};
}

}  // namespace batten::testing
