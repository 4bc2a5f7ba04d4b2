// What the native kernels that the tests get here can do: the card and BATTEN_NATIVE_ARCH decide
// which family they are of.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "conformance/served.hpp"

namespace batten::conformance {

inline const std::vector<int>& native_head_dims() { return find_served("native")->head_dims; }

// A form of another width: those of the sm80 family have none.
inline const char* native_width(const char* form) {
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  const char* family = std::getenv("BATTEN_NATIVE_ARCH");
  const bool sm90 = major == 9 && (family == nullptr || std::string_view(family) == "sm90");
  return sm90 ? form : "native";
}

}  // namespace batten::conformance
