#include "io/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <system_error>
#include <vector>

namespace batten::io {
namespace {

// A lead byte's range, the length of its sequence, and the range of the byte that follows. The
// second byte's range is what excludes overlong forms, surrogates and values above U+10FFFF.
struct Utf8Lead {
  unsigned char first, last;
  std::size_t length;
  unsigned char second_min, second_max;
};

constexpr std::array<Utf8Lead, 9> kUtf8Leads{{
    {0x00, 0x7F, 1, 0x00, 0x00},
    {0xC2, 0xDF, 2, 0x80, 0xBF},
    {0xE0, 0xE0, 3, 0xA0, 0xBF},
    {0xE1, 0xEC, 3, 0x80, 0xBF},
    {0xED, 0xED, 3, 0x80, 0x9F},
    {0xEE, 0xEF, 3, 0x80, 0xBF},
    {0xF0, 0xF0, 4, 0x90, 0xBF},
    {0xF1, 0xF3, 4, 0x80, 0xBF},
    {0xF4, 0xF4, 4, 0x80, 0x8F},
}};

// Length of the well-formed sequence at the start of `text` (not empty), or 0.
std::size_t utf8_sequence(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (const Utf8Lead& lead : kUtf8Leads) {
    if (byte(0) < lead.first || byte(0) > lead.last) continue;
    if (text.size() < lead.length) return 0;
    if (lead.length > 1 && (byte(1) < lead.second_min || byte(1) > lead.second_max)) return 0;
    for (std::size_t i = 2; i < lead.length; ++i) {
      if ((byte(i) & 0xC0) != 0x80) return 0;
    }
    return lead.length;
  }
  return 0;
}

bool is_continuation(char c) noexcept { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::size_t valid_utf8_prefix(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_sequence(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::string printable(std::string_view text, std::size_t max_bytes) {
  const bool cut = text.size() > max_bytes;
  if (cut) {
    // Step back to a character boundary, by at most the three bytes a character can trail.
    std::size_t end = max_bytes;
    for (int step = 0; step < 3 && end > 0 && is_continuation(text[end]); ++step) --end;
    text = text.substr(0, end);
  }
  const bool utf8 = valid_utf8_prefix(text) == text.size();
  std::string out;
  out.reserve(text.size() + 3);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !utf8)) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    } else {
      out.push_back(c);
    }
  }
  if (cut) out += "...";
  return out;
}

std::string printable_path(std::string_view path) { return printable(path, 4096); }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string errno_text(int error) { return std::generic_category().message(error); }

}  // namespace batten::io
