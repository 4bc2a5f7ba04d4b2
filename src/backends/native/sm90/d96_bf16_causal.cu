#include "backends/native/sm90/instantiate.cuh"

namespace batten::impl::native::sm90 {

Instance d96_bf16_causal() {
  return instance_of<Policy<__nv_bfloat16, 96, 128, true>>("sm90 d96 bf16 causal", "128x128");
}

}  // namespace batten::impl::native::sm90
