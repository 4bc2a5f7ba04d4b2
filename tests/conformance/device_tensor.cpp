#include "device_tensor.hpp"

#include <cstring>
#include <utility>

#include "half.hpp"

namespace batten::conformance {

TensorLayout strided_layout(std::vector<std::int64_t> shape, std::vector<std::int64_t> strides,
                            std::int64_t front, std::int64_t back) {
  std::int64_t used = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) {
      used = 0;
      break;
    }
    used += (shape[i] - 1) * strides[i];
  }
  return {std::move(shape), std::move(strides), front, front + used + back};
}

TensorLayout contiguous_layout(std::vector<std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  return strided_layout(std::move(shape), std::move(strides));
}

DeviceTensor::DeviceTensor(Device device, DType dtype, TensorLayout layout)
    : dtype_(dtype),
      layout_(std::move(layout)),
      memory_(device, static_cast<std::size_t>(layout_.extent) * size_of(dtype)) {}

TensorView DeviceTensor::view() const {
  return {memory_.data() + static_cast<std::size_t>(layout_.front) * size_of(dtype_), dtype_,
          layout_.shape, layout_.strides, memory_.device()};
}

TensorView DeviceTensor::rows(std::int64_t first, std::int64_t count) const {
  std::vector<std::int64_t> shape = layout_.shape;
  shape[0] = count;
  const std::int64_t begin = layout_.front + first * layout_.strides[0];
  return {memory_.data() + static_cast<std::size_t>(begin) * size_of(dtype_), dtype_, shape,
          layout_.strides, memory_.device()};
}

void DeviceTensor::fill_bits(std::uint32_t bits) {
  const std::size_t size = size_of(dtype_);
  std::vector<std::byte> bytes(memory_.size());
  for (std::size_t at = 0; at < bytes.size(); at += size) std::memcpy(&bytes[at], &bits, size);
  memory_.upload(bytes);
}

void DeviceTensor::upload(std::span<const float> values, float elsewhere) {
  const std::size_t size = size_of(dtype_);
  std::vector<std::byte> bytes(memory_.size());
  const std::uint32_t other = encode(dtype_, elsewhere);
  for (std::size_t at = 0; at < bytes.size(); at += size) std::memcpy(&bytes[at], &other, size);
  std::size_t next = 0;
  for_each_element(layout_, [&](std::int64_t element) {
    const std::uint32_t bits = encode(dtype_, values[next++]);
    std::memcpy(&bytes[static_cast<std::size_t>(element) * size], &bits, size);
  });
  memory_.upload(bytes);
}

void DeviceTensor::upload(std::span<const std::int32_t> values) {
  std::vector<std::byte> bytes(memory_.size());
  std::memcpy(bytes.data() + static_cast<std::size_t>(layout_.front) * sizeof(std::int32_t),
              values.data(), values.size_bytes());
  memory_.upload(bytes);
}

std::vector<float> DeviceTensor::download() const {
  const std::size_t size = size_of(dtype_);
  std::vector<std::byte> bytes(memory_.size());
  memory_.download(bytes);
  std::size_t count = 1;
  for (const std::int64_t n : layout_.shape) count *= static_cast<std::size_t>(n);
  std::vector<float> values(count);
  std::size_t next = 0;
  for_each_element(layout_, [&](std::int64_t element) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &bytes[static_cast<std::size_t>(element) * size], size);
    values[next++] = decode(dtype_, bits);
  });
  return values;
}

std::vector<std::uint32_t> DeviceTensor::image() const {
  const std::size_t size = size_of(dtype_);
  std::vector<std::byte> bytes(memory_.size());
  memory_.download(bytes);
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(layout_.extent));
  for (std::size_t i = 0; i < bits.size(); ++i) std::memcpy(&bits[i], &bytes[i * size], size);
  return bits;
}

}  // namespace batten::conformance
