// What a launch of an sm80 kernel is given: what all launches are given, and where the tensors lie,
// since nothing is described by tensor maps.
#pragma once

#include "backends/native/shared/arguments.hpp"

namespace batten::impl::native::sm80 {

struct Tensor {
  const void* data = nullptr;
  Layout layout;
};

enum Operand { kQueries, kKeys, kValues, kOperands };

struct Arguments : native::Arguments {
  Tensor operands[kOperands];
  std::int32_t causal = 0;
};
static_assert(sizeof(Arguments) <= 4096, "what every driver takes as kernel parameters");

}  // namespace batten::impl::native::sm80
