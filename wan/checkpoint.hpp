// A Wan checkpoint on disk: a diffusers pipeline or transformer folder, a folder with Wan's own
// files, or one safetensors file. Files are mapped, not read.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.hpp"
#include "wan/config.hpp"
#include "wan/layout.hpp"

namespace batten::wan {

class Checkpoint {
 public:
  // Maps the files and takes the configuration from config.json, where there is one, and from the
  // tensors. Throws InvalidArgument for what is missing, damaged, or in disagreement.
  static Checkpoint open(const std::filesystem::path& path);

  const Config& config() const noexcept { return config_; }
  // The file or folder that holds the tensors, fit for a message.
  const std::string& source() const noexcept { return source_; }
  // Whether the tensors have Wan's own names.
  bool native_names() const noexcept { return native_; }

  // Throws unless the tensors are exactly those of `layout`, by name, shape and kind; the message
  // names a missing tensor and the nearest that is there.
  void check(const Layout& layout) const;

  // The tensor of a slot, which check() has seen.
  const io::TensorEntry& at(const std::string& name) const { return *tensors_.at(name); }

 private:
  void open_files(const std::filesystem::path& path);
  void add_file(const std::filesystem::path& path);
  void name_tensors();
  Config config_of_tensors() const;
  const io::TensorEntry& require(const std::string& name, std::size_t rank) const;
  void compare(const Config& stated, const Config& found, const std::string& file) const;
  [[noreturn]] void missing(const std::string& name,
                            const std::vector<std::string>& candidates) const;

  std::string source_;
  std::filesystem::path config_file_;  // empty: there is none
  std::vector<io::SafetensorsFile> files_;
  std::map<std::string, const io::TensorEntry*> tensors_;  // by diffusers' names
  bool native_ = false;
  Config config_;
};

// Elements [first, first + count) of a tensor, converted to `dtype` (f32, f16, bf16).
void convert(const io::TensorEntry& tensor, std::size_t first, std::size_t count, DType dtype,
             std::byte* out);

// One of the dtypes that weights and inputs may have in a file.
bool is_float(io::Dtype dtype) noexcept;

}  // namespace batten::wan
