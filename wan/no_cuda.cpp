// What a build without CUDA says when a GPU is asked for.
#include "core/error.hpp"
#include "wan/ops.hpp"

namespace batten::wan {

std::unique_ptr<Ops> make_cuda_ops(int index, bool /*tune*/) {
  fail(ErrorCode::Unavailable,
       "cuda:{}: this build of batten has no CUDA support; build it with CUDA", index);
}

}  // namespace batten::wan
