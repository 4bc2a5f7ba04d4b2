#include "backends/native/sm90/instantiate.cuh"

namespace batten::impl::native::sm90 {

Instance d128_bf16_full_wide() {
  return instance_of<Policy<__nv_bfloat16, 128, 144, false>>("sm90 d128 bf16", "128x144");
}

}  // namespace batten::impl::native::sm90
