#include "backends/native/sm90/instantiate.cuh"

namespace batten::impl::native::sm90 {

Instance d64_f16_causal() {
  return instance_of<Policy<__half, 64, 128, true>>("sm90 d64 f16 causal", "128x128");
}

}  // namespace batten::impl::native::sm90
