// The table of what is compiled in.
#pragma once

#include "backends/single/instance.hpp"
#include "backends/single/path.hpp"

namespace batten::impl::single {

struct Kernels {
  Instance full, causal;  // kernel is null where there is none
};

Kernels find_kernels(Path path, DType dtype, int head_dim);

}  // namespace batten::impl::single
