#include "problem/tensor_check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace batten::impl {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();  // offsets are int32
constexpr std::uintptr_t kDeviceAlignment = 16;  // bytes; what vectorised loads and TMA need

std::string shape_text(const batten_tensor& t) {
  return fmt::format("[{}]", fmt::join(t.shape, t.shape + std::clamp(t.ndim, 0, 4), ", "));
}

Device device_of(const batten_tensor& t, const char* name) {
  if (t.device.type != BATTEN_CPU && t.device.type != BATTEN_CUDA) {
    invalid("{}: device type {}, expected cpu or cuda", name, t.device.type);
  }
  if (t.device.type == BATTEN_CPU && t.device.index != 0) {
    invalid("{}: device cpu:{}: the CPU has index 0", name, t.device.index);
  }
  return {static_cast<DeviceType>(t.device.type), t.device.index};
}

// Whether all addresses of the view can be computed in 64 bits, with room to spare. In floating
// point, which does not overflow.
bool addressable(const Extent& e) {
  double bytes = 0;
  for (const auto& [count, stride] :
       {std::pair{e.batch, e.layout.batch}, std::pair{e.rows, e.layout.row},
        std::pair{e.heads, e.layout.head}}) {
    if (count > 1) bytes += static_cast<double>(count) * std::abs(static_cast<double>(stride));
  }
  return bytes * static_cast<double>(e.element_size) < 0x1p60;
}

}  // namespace

const char* dtype_text(std::int32_t dtype) { return name_of(static_cast<DType>(dtype)); }

Extent check_tensor(const batten_tensor* t, const Expected& expected, bool packed, Device device,
                    Pointers pointers) {
  const char* name = expected.name;
  if (t == nullptr) invalid("{}: missing tensor", name);
  const bool has_width = expected.width != 0;
  const int rank = (packed ? 2 : 3) + (has_width ? 1 : 0);
  const char* form =
      packed ? (has_width ? "[T, H, D]" : "[T, H]") : (has_width ? "[B, S, H, D]" : "[B, S, H]");
  if (t->ndim != rank) {
    invalid("{}: has {} dimensions, expected {} as {}{}", name, t->ndim, rank, form,
            packed ? " (a packed call)" : "");
  }
  if (static_cast<DType>(t->dtype) != expected.dtype) {
    invalid("{}: dtype {}, expected {}", name, dtype_text(t->dtype), name_of(expected.dtype));
  }
  const Device on = device_of(*t, name);
  if (on != device) {
    invalid("{}: is on {}, but this attention runs on {}", name, on.str(), device.str());
  }
  Extent e;
  const int first = packed ? 0 : 1;
  e.data = reinterpret_cast<std::uintptr_t>(t->data);
  e.batch = packed ? 1 : t->shape[0];
  e.rows = t->shape[first];
  e.heads = t->shape[first + 1];
  e.width = has_width ? t->shape[first + 2] : 1;
  e.layout = {packed ? 0 : t->strides[0], t->strides[first], t->strides[first + 1]};
  e.element_size = size_of(expected.dtype);
  if (e.batch < 0 || e.rows < 0) invalid("{}: negative size in shape {}", name, shape_text(*t));
  if (e.heads != expected.heads) {
    invalid("{}: {} heads in shape {}, the problem has {}", name, e.heads, shape_text(*t),
            expected.heads);
  }
  if (has_width && e.width != expected.width) {
    invalid("{}: head dim {} in shape {}, the problem has {}", name, e.width, shape_text(*t),
            expected.width);
  }
  if (e.rows > kMaxTokens || e.batch > kMaxBatch) {
    invalid("{}: shape {} is too large, a sample has at most {} tokens and a call {} samples", name,
            shape_text(*t), kMaxTokens, kMaxBatch);
  }
  if (has_width && e.width > 1 && t->strides[rank - 1] != 1) {
    invalid("{}: the last dimension has stride {}, it must be contiguous (stride 1)", name,
            t->strides[rank - 1]);
  }
  if (!addressable(e)) {
    invalid("{}: its strides span more memory than can be addressed, they are in elements", name);
  }
  // Strides of dimensions that are never stepped along mean nothing; give them the contiguous value
  // so that equal calls look equal.
  if (e.heads == 1) e.layout.head = e.width;
  if (e.rows <= 1) e.layout.row = e.heads * e.layout.head;
  if (!packed && e.batch <= 1) e.layout.batch = e.rows * e.layout.row;
  if (pointers == Pointers::required && !e.empty() && t->data == nullptr) {
    invalid("{}: null data pointer for shape {}", name, shape_text(*t));
  }
  if (e.data % e.element_size != 0) {
    invalid("{}: data pointer is not aligned to its {}-byte elements", name, e.element_size);
  }
  if (!device.is_cpu() && has_width) {
    const auto bytes = static_cast<std::int64_t>(e.element_size);
    if (e.data % kDeviceAlignment != 0) {
      invalid("{}: data pointer is not a multiple of {} bytes, as GPU tensors must be", name,
              kDeviceAlignment);
    }
    for (const std::int64_t stride : {e.layout.batch, e.layout.row, e.layout.head}) {
      if (stride < 0) invalid("{}: negative stride {}, not supported on a GPU", name, stride);
      if (stride * bytes % static_cast<std::int64_t>(kDeviceAlignment) != 0) {
        invalid("{}: stride of {} elements is not a multiple of {} bytes, as GPU tensors need",
                name, stride, kDeviceAlignment);
      }
    }
  }
  return e;
}

Array check_array(const batten_tensor* t, const char* name, std::int64_t count, Device device,
                  Pointers pointers) {
  if (t == nullptr) return {};
  if (t->ndim != 1 || static_cast<DType>(t->dtype) != DType::i32) {
    invalid("{}: expected a one-dimensional int32 array, got {} {}", name, dtype_text(t->dtype),
            shape_text(*t));
  }
  if (t->shape[0] != count) {
    invalid("{}: has {} entries, expected {} for this batch", name, t->shape[0], count);
  }
  if (count > 1 && t->strides[0] != 1) invalid("{}: must be contiguous", name);
  const Device on = device_of(*t, name);
  if (!on.is_cpu() && on != device) {
    invalid("{}: is on {}, but this attention runs on {}", name, on.str(), device.str());
  }
  if (t->data == nullptr && pointers == Pointers::required && count > 0) {
    invalid("{}: null data pointer", name);
  }
  if (reinterpret_cast<std::uintptr_t>(t->data) % alignof(std::int32_t) != 0) {
    invalid("{}: data pointer is not aligned to 4 bytes", name);
  }
  return {static_cast<const std::int32_t*>(t->data), on.is_cpu() ? Source::host : Source::device};
}

void check_apart(const Extent& written, const char* written_name, const Extent& other,
                 const char* name) {
  if (overlap(written, other)) {
    invalid("{} and {} overlap in memory, give {} memory of its own", written_name, name,
            written_name);
  }
}

}  // namespace batten::impl
