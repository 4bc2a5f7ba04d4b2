// What `auto` would take for a call, and why, as JSON: for `batten explain` and `batten tune`.
#pragma once

#include <batten/batten.h>

#include <string>

#include "core/device.hpp"

namespace batten::impl {

// {"device", "card": {...}, "chosen", "reason", "candidates": [{"backend", "serves", ...}]}. With
// `card` ("h200") the GPU need not be here, and the constants are those that come with batten.
// InvalidArgument for a wrong problem or call or an unknown card; Unavailable for a device that is
// not there.
std::string explain_json(const batten_problem& problem, Device device,
                         const batten_options& options, const batten_call& call, const char* card);

}  // namespace batten::impl
