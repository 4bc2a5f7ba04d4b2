#include "backends/native/launch.hpp"

#include <cuda_runtime_api.h>

#include "core/cuda_runtime.hpp"

namespace batten::impl::native {
namespace {

bool driver_overlaps_launches() {
  static const bool can = device_runtime().driver_version() >= 12030;
  return can;
}

}  // namespace

void launch(const void* function, const LaunchShape& shape, void* parameter, Stream stream,
            const char* what) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.ctas));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = shape.overlaps && driver_overlaps_launches() ? 1 : 0;
  check_cuda(cudaLaunchKernelExC(&config, function, &parameter), what);
}

}  // namespace batten::impl::native
