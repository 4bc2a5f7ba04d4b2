#include "backends/native/sm90/instantiate.cuh"

namespace batten::impl::native::sm90 {

Instance d128_f16_causal() {
  return instance_of<Policy<__half, 128, 128, true>>("sm90 d128 f16 causal", "128x128");
}

}  // namespace batten::impl::native::sm90
