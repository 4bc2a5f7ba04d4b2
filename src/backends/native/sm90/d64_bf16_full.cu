#include "backends/native/sm90/instantiate.cuh"

namespace batten::impl::native::sm90 {

Instance d64_bf16_full() {
  return instance_of<Policy<__nv_bfloat16, 64, 128, false>>("sm90 d64 bf16", "128x128");
}

}  // namespace batten::impl::native::sm90
