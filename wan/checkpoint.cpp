#include "wan/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/half.hpp"
#include "io/mapped_file.hpp"
#include "io/text.hpp"
#include "wan/names.hpp"

namespace batten::wan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "diffusion_pytorch_model.safetensors";
constexpr const char* kIndex = "diffusion_pytorch_model.safetensors.index.json";

std::string shown(const fs::path& path) { return io::printable_path(path.string()); }

std::string text_of(const fs::path& path) {
  const io::MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Files of `folder` whose names end so, sorted.
std::vector<fs::path> ending(const fs::path& folder, std::string_view end) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), last; !error && it != last; it.increment(error)) {
    if (it->path().filename().string().ends_with(end)) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// The folder that holds the transformer: `folder`, or what a pipeline keeps in it.
fs::path transformer_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder / "transformer_2", error)) {
    fail(ErrorCode::Unsupported,
         "{}: a pair of transformers for two halves of the noise levels (Wan2.2 14B) is not "
         "supported; name a checkpoint with one",
         shown(folder));
  }
  if (fs::is_directory(folder / "transformer", error)) return folder / "transformer";
  return folder;
}

// The files that an index names, in order.
std::vector<fs::path> files_of_index(const fs::path& index) {
  const nlohmann::json document = nlohmann::json::parse(text_of(index), nullptr, false);
  if (!document.is_object() || !document.contains("weight_map") ||
      !document["weight_map"].is_object()) {
    fail(ErrorCode::InvalidArgument,
         "{}: no index of a checkpoint ('weight_map' is missing); download it again", shown(index));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : document["weight_map"].items()) {
    // The index may only point beside itself.
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
      fail(ErrorCode::InvalidArgument, "{}: the file of tensor '{}' is no file name", shown(index),
           io::printable(tensor));
    }
    names.insert(file.get<std::string>());
  }
  std::vector<fs::path> files;
  files.reserve(names.size());
  for (const std::string& name : names) files.push_back(index.parent_path() / name);
  return files;
}

std::vector<fs::path> files_of_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kIndex, error)) return files_of_index(folder / kIndex);
  if (fs::exists(folder / kFile, error)) return {folder / kFile};
  const std::vector<fs::path> indices = ending(folder, ".safetensors.index.json");
  if (indices.size() == 1) return files_of_index(indices.front());
  std::vector<fs::path> files = ending(folder, ".safetensors");
  if (files.size() == 1) return files;
  if (files.empty()) {
    fail(ErrorCode::InvalidArgument,
         "{}: no safetensors file in it; name a diffusers folder or one with Wan's own files",
         shown(folder));
  }
  fail(ErrorCode::InvalidArgument, "{}: {} safetensors files and no index; name one of them",
       shown(folder), files.size());
}

// N of "blocks.N.…"; -1 of other names, and of blocks that no model has.
std::int64_t block_of(const std::string& name) {
  constexpr std::string_view kBlocks = "blocks.";
  constexpr std::int64_t kMost = 1000;
  if (!name.starts_with(kBlocks)) return -1;
  std::int64_t index = 0;
  std::size_t i = kBlocks.size();
  for (; i < name.size() && name[i] >= '0' && name[i] <= '9' && index < kMost; ++i)
    index = index * 10 + (name[i] - '0');
  const bool number = i > kBlocks.size() && i < name.size() && name[i] == '.';
  return number && index < kMost ? index : -1;
}

// diffusers ignores it, too: the published I2V files have it, the model does not.
bool is_ignored(const std::string& name) {
  return name.find("norm_added_q") != std::string::npos || name.find("rope.freqs") == 0;
}

template <class Load>
void convert_all(std::size_t count, DType dtype, std::byte* out, Load load) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load(i);
    if (dtype == DType::f32) {
      std::memcpy(out + i * sizeof(value), &value, sizeof(value));
    } else {
      const std::uint16_t bits =
          dtype == DType::bf16 ? impl::float_to_bfloat16(value) : impl::float_to_half(value);
      std::memcpy(out + i * sizeof(bits), &bits, sizeof(bits));
    }
  }
}

}  // namespace

bool is_float(io::Dtype dtype) noexcept {
  return dtype == io::Dtype::kF32 || dtype == io::Dtype::kF16 || dtype == io::Dtype::kBF16;
}

void convert(const io::TensorEntry& tensor, std::size_t first, std::size_t count, DType dtype,
             std::byte* out) {
  const std::size_t size = io::dtype_size(tensor.dtype);
  const std::byte* in = tensor.data + first * size;
  const bool same = (tensor.dtype == io::Dtype::kF32 && dtype == DType::f32) ||
                    (tensor.dtype == io::Dtype::kF16 && dtype == DType::f16) ||
                    (tensor.dtype == io::Dtype::kBF16 && dtype == DType::bf16);
  if (same) {
    std::memcpy(out, in, count * size);
  } else if (tensor.dtype == io::Dtype::kF32) {
    convert_all(count, dtype, out, [in](std::size_t i) {
      float value = 0;
      std::memcpy(&value, in + i * sizeof(value), sizeof(value));
      return value;
    });
  } else {
    const bool bf16 = tensor.dtype == io::Dtype::kBF16;
    convert_all(count, dtype, out, [in, bf16](std::size_t i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, in + i * sizeof(bits), sizeof(bits));
      return bf16 ? impl::bfloat16_to_float(bits) : impl::half_to_float(bits);
    });
  }
}

Checkpoint Checkpoint::open(const fs::path& path) {
  Checkpoint checkpoint;
  checkpoint.open_files(path);
  checkpoint.name_tensors();
  const Config found = checkpoint.config_of_tensors();
  if (checkpoint.config_file_.empty()) {
    checkpoint.config_ = found;
    wan::check(found, checkpoint.source_);
    return checkpoint;
  }
  const std::string file = shown(checkpoint.config_file_);
  checkpoint.config_ = parse_config(text_of(checkpoint.config_file_), file);
  checkpoint.compare(checkpoint.config_, found, file);
  return checkpoint;
}

void Checkpoint::open_files(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    fail(ErrorCode::InvalidArgument,
         "the model '{}' cannot be read: {}; name a diffusers folder, Wan's own folder or a "
         "safetensors file of this machine (nothing is downloaded)",
         shown(path), error ? io::errno_text(error.value()) : "no such file or folder");
  }
  const bool folder = fs::is_directory(status);
  const fs::path place = folder ? transformer_folder(path) : path;
  source_ = shown(place);
  const bool index = !folder && place.filename().string().ends_with(".index.json");
  for (const fs::path& file : folder  ? files_of_folder(place)
                              : index ? files_of_index(place)
                                      : std::vector<fs::path>{place}) {
    files_.push_back(io::SafetensorsFile::open(file));
  }
  const fs::path config = (folder ? place : place.parent_path()) / "config.json";
  if (fs::exists(config, error)) config_file_ = config;
}

void Checkpoint::name_tensors() {
  std::vector<std::string> names;
  for (const io::SafetensorsFile& file : files_) {
    for (const io::TensorEntry& tensor : file.tensors()) {
      names.push_back(tensor.name);
      const std::string name = diffusers_name(tensor.name);
      if (is_ignored(name)) continue;
      if (!tensors_.emplace(name, &tensor).second) {
        fail(ErrorCode::InvalidArgument, "{}: tensor '{}' is there twice; name one of the files",
             source_, io::printable(tensor.name));
      }
    }
  }
  native_ = has_native_names(names);
}

void Checkpoint::missing(const std::string& name,
                         const std::vector<std::string>& candidates) const {
  const std::string near = nearest_name(name, candidates);
  fail(ErrorCode::InvalidArgument, "{}: tensor '{}' is missing{}", source_, name,
       near.empty() ? "; is it a Wan transformer?"
                    : fmt::format(", the nearest is '{}'", io::printable(near)));
}

const io::TensorEntry& Checkpoint::require(const std::string& name, std::size_t rank) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    std::vector<std::string> names;
    for (const auto& [known, tensor] : tensors_) names.push_back(known);
    missing(name, names);
  }
  if (it->second->shape.size() != rank) {
    fail(ErrorCode::InvalidArgument, "{}: tensor '{}' has shape [{}], expected {} dimensions",
         source_, name, fmt::join(it->second->shape, ", "), rank);
  }
  return *it->second;
}

Config Checkpoint::config_of_tensors() const {
  Config c;
  const auto& patch = require("patch_embedding.weight", 5).shape;
  c.in_channels = patch[1];
  c.patch = {patch[2], patch[3], patch[4]};
  // The number of heads cannot be seen; every published Wan has heads of 128.
  const std::int64_t dim = patch[0];
  c.head_dim = dim % 128 == 0 ? 128 : dim;
  c.heads = dim / c.head_dim;
  c.text_dim = require("condition_embedder.text_embedder.linear_1.weight", 2).shape[1];
  c.freq_dim = require("condition_embedder.time_embedder.linear_1.weight", 2).shape[1];
  c.ffn_dim = require("blocks.0.ffn.net.0.proj.weight", 2).shape[0];
  const std::int64_t out = require("proj_out.weight", 2).shape[0];
  c.out_channels = c.patch_size() > 0 ? out / c.patch_size() : 0;
  for (const auto& [name, tensor] : tensors_) c.layers = std::max(c.layers, block_of(name) + 1);
  const std::string image = "condition_embedder.image_embedder.";
  if (tensors_.contains(image + "norm1.weight"))
    c.image_dim = require(image + "norm1.weight", 1).shape[0];
  if (tensors_.contains(image + "pos_embed"))
    c.image_pos_tokens = require(image + "pos_embed", 3).shape[1];
  if (config_file_.empty() && dim % 128 != 0) {
    fail(ErrorCode::InvalidArgument,
         "{}: {} wide, which is no multiple of 128: its config.json is needed to know the heads",
         source_, dim);
  }
  return c;
}

void Checkpoint::compare(const Config& stated, const Config& found, const std::string& file) const {
  const auto same = [&](const char* what, std::int64_t a, std::int64_t b) {
    if (a == b) return;
    fail(ErrorCode::InvalidArgument, "{}: {} is {}, and {} in the tensors of {}", file, what, a, b,
         source_);
  };
  same("the width (heads x head dim)", stated.dim(), found.dim());
  same("the number of layers", stated.layers, found.layers);
  same("the ffn's width", stated.ffn_dim, found.ffn_dim);
  same("in_channels", stated.in_channels, found.in_channels);
  for (std::size_t i = 0; i < 3; ++i) same("a side of the patch", stated.patch[i], found.patch[i]);
  same("out_channels", stated.out_channels, found.out_channels);
  same("text_dim", stated.text_dim, found.text_dim);
  same("freq_dim", stated.freq_dim, found.freq_dim);
  same("image_dim", stated.image_dim, found.image_dim);
  same("the number of image positions", stated.image_pos_tokens, found.image_pos_tokens);
}

void Checkpoint::check(const Layout& layout) const {
  std::set<std::string> wanted;
  for (const Slot& slot : layout.slots) wanted.insert(slot.name);
  std::vector<std::string> others;  // that no slot wants: one of them may be misnamed
  for (const auto& [name, tensor] : tensors_) {
    if (!wanted.contains(name)) others.push_back(name);
  }
  for (const Slot& slot : layout.slots) {
    const auto it = tensors_.find(slot.name);
    if (it == tensors_.end()) missing(slot.name, others);
    if (it->second->shape != slot.shape) {
      fail(ErrorCode::InvalidArgument, "{}: tensor '{}' has shape [{}], expected [{}]", source_,
           slot.name, fmt::join(it->second->shape, ", "), fmt::join(slot.shape, ", "));
    }
    if (!is_float(it->second->dtype)) {
      fail(ErrorCode::Unsupported, "{}: tensor '{}' is {}, expected F32, F16 or BF16", source_,
           slot.name, io::dtype_name(it->second->dtype));
    }
  }
  if (!others.empty()) {
    fail(ErrorCode::Unsupported,
         "{}: tensor '{}' is none of this model's ({} such); other variants of Wan are not "
         "supported",
         source_, io::printable(others.front()), others.size());
  }
}

}  // namespace batten::wan
