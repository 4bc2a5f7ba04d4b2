// Compiled plans kept between processes. cuDNN compiles a kernel for every plan, which takes the
// better part of a second; a plan file holds the machine code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace batten::impl::cudnn {

// Everything outside the graph that a compiled plan depends on.
struct PlanOrigin {
  std::string device;  // "NVIDIA H200"
  int arch = 0;
  int multiprocessors = 0;
  std::size_t cudnn_version = 0;
  std::size_t compiled_version = 0;  // of the headers
  int cuda_version = 0;              // inside libcudnn
  std::string frontend_version;
};

// The line that names a plan; two plans with one line are interchangeable.
std::string plan_file_key(const PlanOrigin& origin, std::string_view graph);

// BATTEN_CACHE_DIR, else $XDG_CACHE_HOME/batten, else ~/.cache/batten; nothing when
// BATTEN_PLAN_CACHE is "off" or there is no home.
std::optional<std::filesystem::path> plan_folder();

// The file of a key in a folder.
std::filesystem::path plan_path(const std::filesystem::path& folder, std::string_view key);

// A file's bytes, and back. decode() takes nothing but what encode() wrote for the same key; `why`
// says what is wrong.
std::vector<std::uint8_t> encode_plan(std::string_view key, std::span<const std::uint8_t> plan);
std::optional<std::vector<std::uint8_t>> decode_plan(std::string_view key,
                                                     std::span<const std::uint8_t> bytes,
                                                     std::string& why);

// The plan in the folder, or nothing. A damaged or foreign file counts as none, and so does one
// that another user could have written: it holds code that runs on the device.
std::optional<std::vector<std::uint8_t>> load_plan(const std::filesystem::path& folder,
                                                   std::string_view key);

// Keeps the plan, whole or not at all. Failures are logged at debug level and have no other
// consequence.
void store_plan(const std::filesystem::path& folder, std::string_view key,
                std::span<const std::uint8_t> plan) noexcept;

}  // namespace batten::impl::cudnn
