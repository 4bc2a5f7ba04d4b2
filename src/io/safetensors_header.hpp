// The JSON header of a safetensors file: text to entries and back.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.hpp"

namespace batten::io {

/// A tensor as the header describes it; nothing about its offsets has been checked.
struct HeaderEntry {
  std::string name;
  Dtype dtype{};
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The JSON header's contents.
struct Header {
  std::vector<HeaderEntry> tensors;  // sorted by name, names unique
  std::map<std::string, std::string> metadata;
};

/// The key of the metadata map, which no tensor may have as its name.
inline constexpr std::string_view kMetadataKey = "__metadata__";

/// Parses the JSON of a safetensors header. Stricter than JSON: it begins with '{', keys occur
/// once, tensors have exactly the three fields of the format. Runs in constant stack space
/// whatever the nesting. `source` is the file's name, fit for a message. Throws
/// `Error{InvalidArgument}` with file, tensor and field.
Header parse_header(std::string_view json, std::string_view source);

/// The JSON of a header, tensors in the given order, without whitespace (what the official
/// implementation writes). All texts must be UTF-8.
std::string format_header(const Header& header);

}  // namespace batten::io
