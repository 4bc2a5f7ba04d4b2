#include "wan/weights.hpp"

#include <utility>

namespace batten::wan {

Weights::Weights(Ops& ops, const Config& config, Layout layout)
    : config_(config), layout_(std::move(layout)), memory_(ops.allocate(layout_.bytes)) {}

Weights Weights::load(Ops& ops, const Checkpoint& checkpoint, DType dtype) {
  Layout layout = make_layout(checkpoint.config(), dtype);
  checkpoint.check(layout);
  Weights weights(ops, checkpoint.config(), std::move(layout));
  for (const Slot& slot : weights.layout_.slots) {
    const io::TensorEntry& tensor = checkpoint.at(slot.name);
    const std::size_t size = size_of(slot.dtype);
    ops.upload(weights.memory_.data + slot.offset, slot.bytes(),
               [&](std::span<std::byte> piece, std::size_t offset) {
                 convert(tensor, offset / size, piece.size() / size, slot.dtype, piece.data());
               });
  }
  return weights;
}

Weights Weights::random(Ops& ops, const Config& config, DType dtype, std::uint64_t seed) {
  Weights weights(ops, config, make_layout(config, dtype));
  std::uint64_t stream = seed << 20;  // one for each tensor
  for (const Slot& slot : weights.layout_.slots) {
    ops.fill_random(weights.memory_.data + slot.offset, slot.count(), slot.dtype, slot.mean,
                    slot.spread, stream++);
  }
  ops.synchronize();
  return weights;
}

}  // namespace batten::wan
