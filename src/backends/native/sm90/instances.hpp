// The list of compiled kernels.
#pragma once

#include "backends/native/instance.hpp"

namespace batten::impl::native::sm90 {

// The kernel for a head dim, dtype, kind of mask and width of a key block; one without a function
// where there is none.
Instance find_instance(DType dtype, int head_dim, bool causal, int keys);

}  // namespace batten::impl::native::sm90
