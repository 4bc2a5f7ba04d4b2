// Makes the Instance of a kernel; defined in a translation unit for each configuration
// (kernel.cu.in).
#pragma once

#include "backends/native/instance.hpp"

namespace batten::impl::native::sm80 {

// `index`: of kConfigurations.
template <DType dtype, int index>
Instance instance_of();

}  // namespace batten::impl::native::sm80
