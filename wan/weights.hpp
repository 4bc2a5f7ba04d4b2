// A model's weights on a device.
#pragma once

#include <cstdint>

#include "wan/checkpoint.hpp"
#include "wan/config.hpp"
#include "wan/layout.hpp"
#include "wan/ops.hpp"

namespace batten::wan {

class Weights {
 public:
  // Streams the checkpoint's tensors to the device, converted to `dtype` but for those that are
  // float32 in every model.
  static Weights load(Ops& ops, const Checkpoint& checkpoint, DType dtype);

  // Random ones that keep a signal's size, by `seed` alone.
  static Weights random(Ops& ops, const Config& config, DType dtype, std::uint64_t seed);

  const Config& config() const noexcept { return config_; }
  const Layout& layout() const noexcept { return layout_; }
  std::size_t bytes() const noexcept { return layout_.bytes; }

  const void* at(std::size_t offset) const noexcept { return memory_.data + offset; }
  const float* floats(std::size_t offset) const noexcept {
    return reinterpret_cast<const float*>(memory_.data + offset);
  }

 private:
  Weights(Ops& ops, const Config& config, Layout layout);

  Config config_;
  Layout layout_;
  Memory memory_;
};

}  // namespace batten::wan
