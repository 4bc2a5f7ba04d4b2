#include "backends/native/sm90/instantiate.cuh"

namespace batten::impl::native::sm90 {

Instance d256_bf16_causal() {
  return instance_of<Policy<__nv_bfloat16, 256, 80, true>>("sm90 d256 bf16 causal", "128x80");
}

}  // namespace batten::impl::native::sm90
