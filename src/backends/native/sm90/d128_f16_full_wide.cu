#include "backends/native/sm90/instantiate.cuh"

namespace batten::impl::native::sm90 {

Instance d128_f16_full_wide() {
  return instance_of<Policy<__half, 128, 144, false>>("sm90 d128 f16", "128x144");
}

}  // namespace batten::impl::native::sm90
