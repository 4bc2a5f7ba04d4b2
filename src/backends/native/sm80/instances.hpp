// The list of compiled kernels.
#pragma once

#include "backends/native/instance.hpp"
#include "backends/native/sm80/configuration.hpp"

namespace batten::impl::native::sm80 {

// The kernel of one of kConfigurations for a dtype; it serves every mask. One without a function
// where there is none.
Instance find_instance(DType dtype, const Configuration& configuration);

}  // namespace batten::impl::native::sm80
