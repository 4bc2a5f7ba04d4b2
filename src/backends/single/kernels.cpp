#include "backends/single/kernels.hpp"

namespace batten::impl::single {
namespace {

template <DType dtype, int head_dim>
Kernels kernels_of(Path path) {
  if (path == Path::sm90) {
    return {sm90_instance<dtype, head_dim, false>(), sm90_instance<dtype, head_dim, true>()};
  }
  return {sm80_instance<dtype, head_dim, false>(), sm80_instance<dtype, head_dim, true>()};
}

template <int head_dim>
Kernels kernels_of(Path path, DType dtype) {
  return dtype == DType::bf16 ? kernels_of<DType::bf16, head_dim>(path)
                              : kernels_of<DType::f16, head_dim>(path);
}

}  // namespace

Kernels find_kernels(Path path, DType dtype, int head_dim) {
  switch (head_dim) {
#if BATTEN_SINGLE_ALL
    case 64:
      return kernels_of<64>(path, dtype);
    case 256:
      return kernels_of<256>(path, dtype);
#endif
    case 128:
      return kernels_of<128>(path, dtype);
    default:
      return {};
  }
}

}  // namespace batten::impl::single
