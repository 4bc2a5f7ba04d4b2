// An owned tensor on a device, with any strides, and with memory around and between its rows that
// belongs to nobody: filled with garbage for inputs, watched for stray writes in outputs.
#pragma once

#include <batten/batten.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device_memory.hpp"

namespace batten::conformance {

// Where the elements of a tensor lie in its allocation; everything in elements.
struct TensorLayout {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::int64_t front = 0;   // before the tensor's first element
  std::int64_t extent = 0;  // of the whole allocation
};

// Nobody's elements on each side of every layout made here.
inline constexpr std::int64_t kCanary = 128;

TensorLayout contiguous_layout(std::vector<std::int64_t> shape);
TensorLayout strided_layout(std::vector<std::int64_t> shape, std::vector<std::int64_t> strides,
                            std::int64_t front = kCanary, std::int64_t back = kCanary);

// Calls visit(element index in the allocation) for each element, in row-major order of the shape.
template <class Visit>
void for_each_element(const TensorLayout& layout, Visit&& visit) {
  const std::size_t rank = layout.shape.size();
  for (const std::int64_t n : layout.shape)
    if (n == 0) return;
  std::vector<std::int64_t> index(rank, 0);
  std::int64_t position = layout.front;
  for (;;) {
    const std::int64_t last = layout.shape[rank - 1];
    const std::int64_t step = layout.strides[rank - 1];
    for (std::int64_t i = 0; i < last; ++i) visit(position + i * step);
    std::size_t axis = rank - 1;
    for (;;) {
      if (axis == 0) return;
      --axis;
      position += layout.strides[axis];
      if (++index[axis] < layout.shape[axis]) break;
      position -= layout.strides[axis] * layout.shape[axis];
      index[axis] = 0;
    }
  }
}

class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(Device device, DType dtype, TensorLayout layout);

  TensorView view() const;
  const TensorLayout& layout() const noexcept { return layout_; }
  DType dtype() const noexcept { return dtype_; }
  Device device() const noexcept { return memory_.device(); }

  // A part of the first dimension: rows [first, first + count).
  TensorView rows(std::int64_t first, std::int64_t count) const;

  // Every element of the allocation, around the tensor too, becomes these bits.
  void fill_bits(std::uint32_t bits);

  // `values` in row-major order of the shape, rounded to the dtype; all other elements of the
  // allocation become `elsewhere`. Where strides of 0 let elements coincide, the last value stays.
  void upload(std::span<const float> values, float elsewhere);
  void upload(std::span<const std::int32_t> values);

  // In row-major order of the shape. The work that writes the tensor must have ended.
  std::vector<float> download() const;

  // The bits of the whole allocation.
  std::vector<std::uint32_t> image() const;

 private:
  DType dtype_ = DType::none;
  TensorLayout layout_;
  DeviceMemory memory_;
};

}  // namespace batten::conformance
