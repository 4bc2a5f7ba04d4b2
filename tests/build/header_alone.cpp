// batten.hpp needs nothing before it.
#include <batten/batten.hpp>

namespace {
[[maybe_unused]] batten::Problem problem{.dtype = batten::bf16, .num_heads = 12, .head_dim = 128};
}
