#include "io/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "io/text.hpp"

namespace batten::io {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kAdvice = "the file is damaged or not safetensors; write it again";

// Receives the parser's events. A handler instead of a parsed tree, because a tree keeps only the
// last of two equal keys, and because whatever does not fit is refused when it is met: a header of
// 100 million brackets costs neither memory nor stack.
class HeaderHandler {
 public:
  HeaderHandler(std::string_view source, Header& header) : source_(source), header_(header) {}

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(Json::number_integer_t) { return unexpected("a negative number"); }
  bool number_float(Json::number_float_t, const std::string& text) {
    return unexpected(fmt::format("the number {}", printable(text, 40)));
  }
  bool binary(Json::binary_t&) { return unexpected("binary data"); }
  bool number_unsigned(Json::number_unsigned_t value);
  bool string(std::string& value);
  bool start_object(std::size_t);
  bool key(std::string& name);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error);

 private:
  // The innermost open bracket.
  enum class Place { kOutside, kTop, kTensor, kShape, kOffsets, kMetadata };
  enum Field : std::size_t { kDtype, kShapeField, kOffsetsField, kFieldCount };
  static constexpr std::array<std::string_view, kFieldCount> kFieldNames{"dtype", "shape",
                                                                         "data_offsets"};

  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::InvalidArgument, "'{}': {}; {}", source_, what, kAdvice);
  }
  bool unexpected(std::string_view found) const {
    refuse(fmt::format("{}, found {}", expectation(), found));
  }
  // What should stand at this place, with its name.
  std::string expectation() const;
  std::string tensor_label() const { return fmt::format("tensor '{}'", printable(entry_.name)); }

  std::string_view source_;
  Header& header_;
  Place place_ = Place::kOutside;
  HeaderEntry entry_;  // the tensor that is being read
  std::array<bool, kFieldCount> seen_{};
  Field field_ = kDtype;
  std::array<std::uint64_t, 2> offsets_{};
  std::size_t num_offsets_ = 0;
  std::string metadata_key_;
  bool metadata_seen_ = false;
};

std::string HeaderHandler::expectation() const {
  switch (place_) {
    case Place::kOutside:
      break;
    case Place::kTop:
      if (entry_.name == kMetadataKey) return "__metadata__ must be an object of texts";
      return fmt::format("{} must be an object with dtype, shape and data_offsets", tensor_label());
    case Place::kTensor:
      if (field_ == kDtype) return fmt::format("{}: dtype must be a text", tensor_label());
      return fmt::format("{}: {} must be an array of non-negative integers", tensor_label(),
                         kFieldNames[field_]);
    case Place::kShape:
    case Place::kOffsets:
      return fmt::format("{}: {} must hold non-negative integers below 2^{}", tensor_label(),
                         kFieldNames[field_], field_ == kShapeField ? 63 : 64);
    case Place::kMetadata:
      return fmt::format("__metadata__ '{}' must be a text", printable(metadata_key_));
  }
  return "the header must be a JSON object";
}

bool HeaderHandler::number_unsigned(Json::number_unsigned_t value) {
  if (place_ == Place::kShape) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return unexpected(fmt::format("{}", value));
    }
    if (entry_.shape.size() == kMaxRank) {
      refuse(fmt::format("{}: shape has more than {} dimensions", tensor_label(), kMaxRank));
    }
    entry_.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  if (place_ == Place::kOffsets) {
    if (num_offsets_ == offsets_.size()) {
      refuse(fmt::format("{}: data_offsets has more than two numbers", tensor_label()));
    }
    offsets_[num_offsets_++] = value;
    return true;
  }
  return unexpected(fmt::format("the number {}", value));
}

bool HeaderHandler::string(std::string& value) {
  if (place_ == Place::kTensor && field_ == kDtype) {
    const std::optional<Dtype> dtype = parse_dtype(value);
    if (!dtype) {
      fail(ErrorCode::InvalidArgument, "'{}': {}: unknown dtype '{}'; convert it to one of {}",
           source_, tensor_label(), printable(value, 40), legal_dtype_names());
    }
    entry_.dtype = *dtype;
    return true;
  }
  if (place_ == Place::kMetadata) {
    header_.metadata.insert_or_assign(std::move(metadata_key_), std::move(value));
    return true;
  }
  return unexpected(fmt::format("the text '{}'", printable(value, 40)));
}

bool HeaderHandler::start_object(std::size_t) {
  if (place_ == Place::kOutside) {
    place_ = Place::kTop;
  } else if (place_ == Place::kTop) {
    place_ = entry_.name == kMetadataKey ? Place::kMetadata : Place::kTensor;
  } else {
    return unexpected("an object");
  }
  return true;
}

bool HeaderHandler::key(std::string& name) {
  if (place_ == Place::kTop) {
    entry_ = {};
    entry_.name = std::move(name);
    seen_ = {};
    num_offsets_ = 0;
    if (entry_.name == kMetadataKey && std::exchange(metadata_seen_, true)) {
      refuse("the key __metadata__ occurs twice");
    }
  } else if (place_ == Place::kTensor) {
    const auto known = std::find(kFieldNames.begin(), kFieldNames.end(), name);
    if (known == kFieldNames.end()) {
      // Not skipped: a field that we do not know may change what the data means.
      refuse(fmt::format("{}: unknown field '{}', legal are dtype, shape and data_offsets",
                         tensor_label(), printable(name, 40)));
    }
    field_ = static_cast<Field>(std::distance(kFieldNames.begin(), known));
    if (std::exchange(seen_[field_], true)) {
      refuse(fmt::format("{}: the field {} occurs twice", tensor_label(), *known));
    }
  } else {
    if (header_.metadata.contains(name)) {
      refuse(fmt::format("the key '{}' occurs twice in __metadata__", printable(name)));
    }
    metadata_key_ = std::move(name);
  }
  return true;
}

bool HeaderHandler::end_object() {
  if (place_ == Place::kTensor) {
    for (std::size_t i = 0; i < kFieldCount; ++i) {
      if (!seen_[i]) refuse(fmt::format("{}: {} is missing", tensor_label(), kFieldNames[i]));
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    header_.tensors.push_back(std::move(entry_));
  }
  place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
  return true;
}

bool HeaderHandler::start_array(std::size_t) {
  if (place_ != Place::kTensor || field_ == kDtype) return unexpected("an array");
  place_ = field_ == kShapeField ? Place::kShape : Place::kOffsets;
  return true;
}

bool HeaderHandler::end_array() {
  if (place_ == Place::kOffsets && num_offsets_ != offsets_.size()) {
    refuse(fmt::format("{}: data_offsets needs two numbers, has {}", tensor_label(), num_offsets_));
  }
  place_ = Place::kTensor;
  return true;
}

bool HeaderHandler::parse_error(std::size_t position, const std::string&,
                                const Json::exception& error) {
  // The library's text is "[json.exception.parse_error.101] parse error at line 1, column 9: ...";
  // the part after the position is the reason.
  std::string_view reason = error.what();
  const std::size_t column = reason.find("column ");
  const std::size_t colon = reason.find(": ", column == std::string_view::npos ? 0 : column);
  if (colon != std::string_view::npos) reason.remove_prefix(colon + 2);
  refuse(fmt::format("the header is not valid JSON at byte {}: {}", position, printable(reason)));
}

}  // namespace

Header parse_header(std::string_view json, std::string_view source) {
  const auto refuse = [&](std::string_view what) {
    fail(ErrorCode::InvalidArgument, "'{}': {}; {}", source, what, kAdvice);
  };
  if (json.empty() || json.front() != '{') refuse("the header does not begin with '{'");
  // The JSON library takes a zero byte for the end of its input and would not look further.
  if (json.find('\0') != std::string_view::npos) refuse("the header contains a zero byte");
  const std::size_t valid = valid_utf8_prefix(json);
  if (valid != json.size()) refuse(fmt::format("the header is not UTF-8 at byte {}", valid));

  Header header;
  HeaderHandler handler(source, header);
  Json::sax_parse(json.begin(), json.end(), &handler);

  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const HeaderEntry& a, const HeaderEntry& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(
      header.tensors.begin(), header.tensors.end(),
      [](const HeaderEntry& a, const HeaderEntry& b) { return a.name == b.name; });
  if (twice != header.tensors.end()) {
    refuse(fmt::format("tensor '{}' occurs twice", printable(twice->name)));
  }
  return header;
}

std::string format_header(const Header& header) {
  const auto quoted = [](std::string_view text) { return Json(text).dump(); };
  std::string out = "{";
  const auto comma = [&] {
    if (out.size() > 1 && out.back() != '{') out.push_back(',');
  };
  if (!header.metadata.empty()) {
    out += fmt::format("{}:{{", quoted(kMetadataKey));
    for (const auto& [key, value] : header.metadata) {
      comma();
      out += fmt::format("{}:{}", quoted(key), quoted(value));
    }
    out.push_back('}');
  }
  for (const HeaderEntry& tensor : header.tensors) {
    comma();
    out += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                       quoted(tensor.name), dtype_name(tensor.dtype), fmt::join(tensor.shape, ","),
                       tensor.begin, tensor.end);
  }
  out.push_back('}');
  return out;
}

}  // namespace batten::io
