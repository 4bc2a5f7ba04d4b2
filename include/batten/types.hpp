// Value types and the exception shared by the C++ interface and the library's own code.
#pragma once

#include <batten/batten.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace batten {

enum class DType : std::int32_t {
  none = BATTEN_DTYPE_NONE,
  f32 = BATTEN_F32,
  f16 = BATTEN_F16,
  bf16 = BATTEN_BF16,
  i32 = BATTEN_I32,
};
inline constexpr DType f32 = DType::f32;
inline constexpr DType f16 = DType::f16;
inline constexpr DType bf16 = DType::bf16;

// Bytes of one element; 0 for `none`.
constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::none:
      break;
  }
  return 0;
}

// The spelling of messages and JSON: "float32", "float16", "bfloat16", "int32".
constexpr const char* name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::i32:
      return "int32";
    case DType::none:
      break;
  }
  return "none";
}

// Which keys a query sees; see batten_mask.
enum class Mask : std::int32_t {
  none = BATTEN_MASK_NONE,
  causal = BATTEN_MASK_CAUSAL,
  causal_top_left = BATTEN_MASK_CAUSAL_TOP_LEFT,
};

constexpr const char* name_of(Mask mask) noexcept {
  switch (mask) {
    case Mask::none:
      return "none";
    case Mask::causal:
      return "causal";
    case Mask::causal_top_left:
      return "causal_top_left";
  }
  return "unknown";
}

enum class DeviceType : std::int32_t { cpu = BATTEN_CPU, cuda = BATTEN_CUDA };

// Where memory lies and work runs.
struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;

  static constexpr Device cpu() noexcept { return {}; }
  static constexpr Device cuda(std::int32_t index = 0) noexcept {
    return {DeviceType::cuda, index};
  }
  constexpr bool is_cpu() const noexcept { return type == DeviceType::cpu; }
  friend constexpr bool operator==(const Device&, const Device&) = default;
  // "cpu" or "cuda:N"
  std::string str() const { return is_cpu() ? "cpu" : "cuda:" + std::to_string(index); }
};

enum class ErrorCode : int {
  InvalidArgument = BATTEN_INVALID_ARGUMENT,
  Unsupported = BATTEN_UNSUPPORTED,
  Unavailable = BATTEN_UNAVAILABLE,
  OutOfMemory = BATTEN_OUT_OF_MEMORY,
  Device = BATTEN_DEVICE_ERROR,
  Internal = BATTEN_INTERNAL,
};

constexpr const char* name_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::InvalidArgument:
      return "InvalidArgument";
    case ErrorCode::Unsupported:
      return "Unsupported";
    case ErrorCode::Unavailable:
      return "Unavailable";
    case ErrorCode::OutOfMemory:
      return "OutOfMemory";
    case ErrorCode::Device:
      return "Device";
    case ErrorCode::Internal:
      return "Internal";
  }
  return "Unknown";
}

// One line that says what is wrong, where, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace batten
