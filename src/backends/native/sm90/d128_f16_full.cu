#include "backends/native/sm90/instantiate.cuh"

namespace batten::impl::native::sm90 {

Instance d128_f16_full() {
  return instance_of<Policy<__half, 128, 128, false>>("sm90 d128 f16", "128x128");
}

}  // namespace batten::impl::native::sm90
