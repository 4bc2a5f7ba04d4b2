// Texts that come from files: UTF-8 checks, one-line rendering, likeness.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace batten::io {

/// Number of leading bytes of `text` that are well-formed UTF-8 (RFC 3629: no overlong forms, no
/// surrogates, nothing above U+10FFFF). Equals `text.size()` when all of it is.
std::size_t valid_utf8_prefix(std::string_view text) noexcept;

/// `text` made fit for a one-line message: control characters become `\xNN`, and so does every
/// non-ASCII byte if `text` is not valid UTF-8; what exceeds `max_bytes` of input is cut and
/// replaced by "...". Names and paths come from files, so they may hold anything.
std::string printable(std::string_view text, std::size_t max_bytes = 160);

/// `printable` for a path: long enough for any path that the system accepts.
std::string printable_path(std::string_view path);

/// Insertions, deletions and replacements of bytes that turn one text into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The system's text for an `errno` value ("No space left on device"). Thread-safe.
std::string errno_text(int error);

}  // namespace batten::io
