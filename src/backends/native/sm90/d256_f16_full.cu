#include "backends/native/sm90/instantiate.cuh"

namespace batten::impl::native::sm90 {

Instance d256_f16_full() {
  return instance_of<Policy<__half, 256, 80, false>>("sm90 d256 f16", "128x80");
}

}  // namespace batten::impl::native::sm90
