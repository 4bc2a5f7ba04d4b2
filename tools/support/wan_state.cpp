#include "support/wan_state.hpp"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <span>

#include "core/error.hpp"
#include "io/safetensors.hpp"
#include "io/text.hpp"
#include "wan/checkpoint.hpp"

namespace batten::tools {
namespace {

constexpr const char* kRun = "batten.wan.run";
constexpr const char* kDone = "batten.wan.steps_done";
constexpr std::string_view kHistory = "resume.";

std::vector<float> floats_of(const io::TensorEntry& tensor) {
  std::vector<float> values(tensor.bytes / sizeof(float));
  wan::convert(tensor, 0, values.size(), DType::f32, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

[[noreturn]] void foreign(const std::string& path) {
  fail(ErrorCode::InvalidArgument,
       "'{}' is there, and no file of `batten wan denoise`; give another -o, or remove it",
       io::printable_path(path));
}

}  // namespace

void save_state(const std::string& path, const WanState& state) {
  io::SafetensorsWriter writer;
  writer.add("latents", io::Dtype::kF32, state.shape, std::as_bytes(std::span(state.latents)));
  if (!state.complete()) {
    for (const wan::Solver::History& part : state.history) {
      writer.add(std::string(kHistory) + part.name, io::Dtype::kF32, state.shape,
                 std::as_bytes(std::span(part.values)));
    }
  }
  writer.set_metadata(kRun, state.run.dump());
  writer.set_metadata(kDone, std::to_string(state.done));
  writer.write(path);
}

std::optional<WanState> load_state(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) || !std::filesystem::is_regular_file(path, error))
    return std::nullopt;
  const auto file = io::SafetensorsFile::open(path);
  const auto& metadata = file.metadata();
  const auto run = metadata.find(kRun);
  const auto done = metadata.find(kDone);
  const io::TensorEntry* latents = file.find("latents");
  if (run == metadata.end() || done == metadata.end() || latents == nullptr ||
      latents->dtype != io::Dtype::kF32) {
    foreign(path);
  }
  WanState state;
  state.run = Json::parse(run->second, nullptr, false);
  const char* const end = done->second.data() + done->second.size();
  const auto [rest, failure] = std::from_chars(done->second.data(), end, state.done);
  if (!state.run.is_object() || !state.run.value("steps", Json()).is_number_integer() ||
      failure != std::errc() || rest != end)
    foreign(path);
  state.shape = latents->shape;
  state.latents = floats_of(*latents);
  for (const io::TensorEntry& tensor : file.tensors()) {
    if (!tensor.name.starts_with(kHistory) || tensor.dtype != io::Dtype::kF32 ||
        tensor.shape != state.shape) {
      continue;
    }
    state.history.push_back({tensor.name.substr(kHistory.size()), floats_of(tensor)});
  }
  return state;
}

void check_same_run(const WanState& state, const Json& run, const std::string& path) {
  for (const auto& [name, value] : run.items()) {
    const Json there = state.run.value(name, Json());
    if (there == value) continue;
    fail(
        ErrorCode::InvalidArgument,
        "'{}' was made with {} {}, and is to go on with {}; resume with the same options and files",
        io::printable_path(path), name, there.dump(), value.dump());
  }
}

}  // namespace batten::tools
