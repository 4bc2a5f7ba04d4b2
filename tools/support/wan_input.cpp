#include "support/wan_input.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "io/text.hpp"
#include "support/suggest.hpp"
#include "wan/checkpoint.hpp"

namespace batten::tools {
namespace {

std::string shape_of(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

FloatTensor floats(const io::SafetensorsFile& file, const io::TensorEntry& entry) {
  if (!wan::is_float(entry.dtype)) {
    fail(ErrorCode::InvalidArgument,
         "'{}': tensor '{}' is {}, expected F32, F16 or BF16; save it in one of these",
         file.source(), io::printable(entry.name), io::dtype_name(entry.dtype));
  }
  FloatTensor tensor{entry.shape, std::vector<float>(entry.bytes / io::dtype_size(entry.dtype))};
  wan::convert(entry, 0, tensor.values.size(), DType::f32,
               reinterpret_cast<std::byte*>(tensor.values.data()));
  // One NaN would make all of the video one.
  if (!std::all_of(tensor.values.begin(), tensor.values.end(),
                   [](float x) { return std::isfinite(x); })) {
    fail(ErrorCode::InvalidArgument,
         "'{}': tensor '{}' holds values that are not finite; make it again", file.source(),
         io::printable(entry.name));
  }
  return tensor;
}

std::vector<std::string> names_of(const io::SafetensorsFile& file) {
  std::vector<std::string> names;
  for (const io::TensorEntry& tensor : file.tensors()) names.push_back(tensor.name);
  return names;
}

// "'a', 'b', 'c' and 7 more"; "no tensor" of none.
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 3;
  if (names.empty()) return "no tensor";
  std::vector<std::string> some;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i)
    some.push_back(fmt::format("'{}'", io::printable(names[i])));
  const std::string text = fmt::format("{}", fmt::join(some, ", "));
  return names.size() <= kMost ? text : fmt::format("{} and {} more", text, names.size() - kMost);
}

const io::TensorEntry& entry_of(const io::SafetensorsFile& file,
                                const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (const io::TensorEntry* entry = file.find(name)) return *entry;
  }
  if (file.tensors().size() == 1) return file.tensors().front();
  const std::vector<std::string> there = names_of(file);
  const std::string near = nearest_tensor(names.front(), there);
  fail(
      ErrorCode::InvalidArgument,
      "'{}': tensor '{}' is missing, {}; give the tensor {}, or name another file", file.source(),
      names.front(),
      near.empty() ? fmt::format("the file holds {}", listed(there))
                   : fmt::format("the nearest is '{}'", io::printable(near)),
      names.size() == 1 ? "that name" : fmt::format("one of the names {}", fmt::join(names, ", ")));
}

}  // namespace

bool has_tensor(const std::string& path, const std::string& name) {
  const auto file = io::SafetensorsFile::open(path);
  return file.find(name) != nullptr;
}

FloatTensor read_text(const std::string& path, const std::vector<std::string>& names,
                      const wan::Config& config) {
  const auto file = io::SafetensorsFile::open(path);
  const io::TensorEntry& entry = entry_of(file, names);
  std::vector<std::int64_t> shape = entry.shape;
  if (shape.size() == 2) shape.insert(shape.begin(), 1);
  const auto bad = [&](const std::string& why) {
    fail(ErrorCode::InvalidArgument, "'{}': tensor '{}' {} {}", file.source(),
         io::printable(entry.name), shape_of(entry.shape), why);
  };
  if (shape.size() != 3) {
    bad(fmt::format("is no text embedding; expected [videos, tokens, {}] or [tokens, {}]",
                    config.text_dim, config.text_dim));
  }
  if (shape[2] != config.text_dim) {
    bad(
        fmt::format("is {} wide, the model's text embeddings are {}; encode the prompt with the "
                    "model's own text encoder",
                    shape[2], config.text_dim));
  }
  if (shape[0] < 1 || shape[1] < 1) bad("is empty; it needs a video and a token at least");
  if (shape[1] > wan::kTextTokens) {
    bad(fmt::format("has {} tokens, the model takes at most {}; cut the prompt there", shape[1],
                    wan::kTextTokens));
  }
  const FloatTensor given = floats(file, entry);
  FloatTensor text{{shape[0], wan::kTextTokens, shape[2]}, {}};
  text.values.resize(static_cast<std::size_t>(shape[0] * wan::kTextTokens * shape[2]));
  const auto row = static_cast<std::size_t>(shape[1] * shape[2]);
  for (std::size_t b = 0; b < static_cast<std::size_t>(shape[0]); ++b) {
    std::copy_n(given.values.data() + b * row, row,
                text.values.data() + b * static_cast<std::size_t>(wan::kTextTokens * shape[2]));
  }
  return text;
}

FloatTensor read_tensor(const std::string& path, const std::string& name,
                        const std::vector<std::int64_t>& shape, const std::string& what) {
  const auto file = io::SafetensorsFile::open(path);
  const io::TensorEntry& entry = entry_of(file, {name});
  std::vector<std::int64_t> found = entry.shape;
  if (found.size() + 1 == shape.size()) found.insert(found.begin(), 1);
  bool fits = found.size() == shape.size();
  std::vector<std::string> wanted;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    fits = fits && found[i] > 0 && (shape[i] < 0 || found[i] == shape[i]);
    wanted.push_back(shape[i] < 0 ? "N" : std::to_string(shape[i]));
  }
  if (!fits) {
    fail(ErrorCode::InvalidArgument, "'{}': tensor '{}' has shape {}, {} here is [{}]",
         file.source(), io::printable(entry.name), shape_of(entry.shape), what,
         fmt::join(wanted, ", "));
  }
  FloatTensor tensor = floats(file, entry);
  tensor.shape = found;
  return tensor;
}

void repeat(FloatTensor& tensor, std::int64_t videos, const std::string& what) {
  if (tensor.shape[0] == videos) return;
  if (tensor.shape[0] != 1) {
    fail(ErrorCode::InvalidArgument, "{} for {} videos, and {} prompts; give one, or one a prompt",
         what, tensor.shape[0], videos);
  }
  const std::vector<float> one = tensor.values;
  for (std::int64_t i = 1; i < videos; ++i)
    tensor.values.insert(tensor.values.end(), one.begin(), one.end());
  tensor.shape[0] = videos;
}

}  // namespace batten::tools
