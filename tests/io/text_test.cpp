#include "io/text.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <string_view>

namespace batten::io {
namespace {

using namespace std::string_view_literals;

TEST(Utf8, AcceptsEveryLengthAndItsLimits) {
  for (const std::string_view text :
       {""sv, "plain"sv, "\0"sv, "\x7f"sv, "\xc2\x80"sv, "\xdf\xbf"sv, "\xe0\xa0\x80"sv,
        "\xed\x9f\xbf"sv, "\xee\x80\x80"sv, "\xef\xbf\xbf"sv, "\xf0\x90\x80\x80"sv,
        "\xf4\x8f\xbf\xbf"sv, "größe"sv, "日本"sv, "🦇"sv}) {
    EXPECT_EQ(valid_utf8_prefix(text), text.size()) << text;
  }
}

TEST(Utf8, StopsAtTheFirstBadSequence) {
  for (const std::string_view bad :
       {"\x80"sv, "\xbf"sv, "\xc0\x80"sv, "\xc1\xbf"sv, "\xc2"sv, "\xc2\x41"sv, "\xe0\x9f\xbf"sv,
        "\xe1\x80"sv, "\xe1\x80\x41"sv, "\xed\xa0\x80"sv, "\xf0\x8f\xbf\xbf"sv, "\xf1\x80\x80"sv,
        "\xf4\x90\x80\x80"sv, "\xf5\x80\x80\x80"sv, "\xff"sv}) {
    const std::string text = "ok" + std::string(bad);
    EXPECT_EQ(valid_utf8_prefix(text), 2U) << printable(text);
  }
}

TEST(Printable, KeepsReadableTextAndEscapesTheRest) {
  EXPECT_EQ(printable("blocks.0/größe 🦇"), "blocks.0/größe 🦇");
  EXPECT_EQ(printable("a\nb\x1b[31m\x7f\0"sv), "a\\x0ab\\x1b[31m\\x7f\\x00");
  EXPECT_EQ(printable("\xff\xc3\xa4"), "\\xff\\xc3\\xa4");
}

TEST(Printable, CutsAtACharacter) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("aä", 2), "a...");
  EXPECT_EQ(printable("a🦇b", 4), "a...");
  EXPECT_EQ(printable("a🦇b", 5), "a🦇...");
  EXPECT_EQ(printable("\x80\x80\x80\x80\x80\x80", 5), "\\x80\\x80...");
}

TEST(ErrnoText, IsTheSystemsOwn) { EXPECT_EQ(errno_text(ENOSPC), "No space left on device"); }

}  // namespace
}  // namespace batten::io
