// The tensors of `batten attend`'s input file, checked.
#pragma once

#include <batten/batten.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "device_memory.hpp"
#include "io/safetensors.hpp"

namespace batten::tools {

// The opened file with q [B,Sq,Hq,D], k [B,Skv,Hkv,D] and v [B,Skv,Hkv,Dv] of one dtype, and
// optional q_lengths and kv_lengths [B]. Every Error names the file, the tensor and what to do.
class AttendInput {
 public:
  explicit AttendInput(const std::filesystem::path& path);

  const io::SafetensorsFile& file() const noexcept { return file_; }
  const io::TensorEntry& q() const noexcept { return *q_; }
  const io::TensorEntry& k() const noexcept { return *k_; }
  const io::TensorEntry& v() const noexcept { return *v_; }

  // The floating-point tensor of that name; Error if there is none or it holds something else.
  const io::TensorEntry& require(std::string_view name) const;

  DType dtype() const noexcept { return dtype_; }
  std::int64_t batch() const noexcept { return q_->shape[0]; }
  std::int64_t q_rows() const noexcept { return q_->shape[1]; }
  std::int64_t kv_rows() const noexcept { return k_->shape[1]; }
  int num_heads() const noexcept { return static_cast<int>(q_->shape[2]); }
  int num_kv_heads() const noexcept { return static_cast<int>(k_->shape[2]); }
  int head_dim() const noexcept { return static_cast<int>(q_->shape[3]); }
  int head_dim_v() const noexcept { return static_cast<int>(v_->shape[3]); }

  // Empty where the file has none: every sample then has all rows.
  const std::vector<std::int32_t>& q_lengths() const noexcept { return q_lengths_; }
  const std::vector<std::int32_t>& kv_lengths() const noexcept { return kv_lengths_; }

 private:
  void check_shapes() const;
  std::vector<std::int32_t> read_lengths(const std::string& name, const char* of,
                                         std::int64_t rows) const;

  io::SafetensorsFile file_;
  const io::TensorEntry* q_ = nullptr;
  const io::TensorEntry* k_ = nullptr;
  const io::TensorEntry* v_ = nullptr;
  DType dtype_ = DType::none;
  std::vector<std::int32_t> q_lengths_, kv_lengths_;
};

// A tensor of the file on a device. On the CPU it is the mapped file itself, where that is aligned.
class LoadedTensor {
 public:
  LoadedTensor(const io::TensorEntry& entry, DType dtype, Device device);
  const TensorView& view() const noexcept { return view_; }

 private:
  conformance::DeviceMemory memory_;
  TensorView view_;
};

// Floating-point element types of a file as batten's; none for others.
DType dtype_of(io::Dtype dtype) noexcept;
io::Dtype file_dtype_of(DType dtype);

// "[1, 120, 12, 128]"
std::string shape_text(const std::vector<std::int64_t>& shape);

// The values of a floating-point tensor.
std::vector<float> decode_values(const io::TensorEntry& entry);

}  // namespace batten::tools
