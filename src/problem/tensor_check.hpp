// Checks of one tensor view or array of the C ABI.
#pragma once

#include <batten/batten.h>

#include <cstdint>
#include <utility>

#include "core/error.hpp"
#include "problem/layout.hpp"

namespace batten::impl {

// Throws InvalidArgument.
template <class... Args>
[[noreturn]] void invalid(fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorCode::InvalidArgument, format, std::forward<Args>(args)...);
}

// The name of a raw batten_dtype; "none" for what is not one.
const char* dtype_text(std::int32_t dtype);

inline constexpr std::int64_t kMaxBatch = 1 << 24;

enum class Pointers { required, ignored };  // ignored: prepare(), which reads no tensor

struct Expected {
  const char* name;
  DType dtype;
  std::int64_t heads;
  std::int64_t width;  // 0: no last dimension (lse)
};

// The view as [batch, rows, heads, width]; packed ones have batch 1. InvalidArgument naming the
// tensor for a wrong rank, dtype, device, size, stride or pointer. Strides of dimensions of size
// one get their contiguous value.
Extent check_tensor(const batten_tensor* t, const Expected& expected, bool packed, Device device,
                    Pointers pointers);

struct Array {
  const std::int32_t* data = nullptr;
  Source source = Source::none;
};

// An optional int32 array of `count` entries, on the host or on `device`.
Array check_array(const batten_tensor* t, const char* name, std::int64_t count, Device device,
                  Pointers pointers);

// InvalidArgument naming both if `written` may share memory with `other`.
void check_apart(const Extent& written, const char* written_name, const Extent& other,
                 const char* name);

}  // namespace batten::impl
