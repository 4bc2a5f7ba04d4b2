#include "backends/native/sm90/instances.hpp"

namespace batten::impl::native::sm90 {

#if BATTEN_NATIVE_SM90

// One translation unit each.
Instance d128_bf16_full();
Instance d128_bf16_full_wide();
Instance d128_bf16_causal();
Instance d128_f16_full();
Instance d128_f16_full_wide();
Instance d128_f16_causal();
Instance d64_bf16_full();
Instance d64_bf16_causal();
Instance d64_f16_full();
Instance d64_f16_causal();
Instance d96_bf16_full();
Instance d96_bf16_causal();
Instance d96_f16_full();
Instance d96_f16_causal();
Instance d256_bf16_full();
Instance d256_bf16_causal();
Instance d256_f16_full();
Instance d256_f16_causal();

Instance find_instance(DType dtype, int head_dim, bool causal, int keys) {
  static const Instance all[] = {
      d128_bf16_full(),     d128_bf16_full_wide(), d128_bf16_causal(), d128_f16_full(),
      d128_f16_full_wide(), d128_f16_causal(),     d64_bf16_full(),    d64_bf16_causal(),
      d64_f16_full(),       d64_f16_causal(),      d96_bf16_full(),    d96_bf16_causal(),
      d96_f16_full(),       d96_f16_causal(),      d256_bf16_full(),   d256_bf16_causal(),
      d256_f16_full(),      d256_f16_causal(),
  };
  for (const Instance& i : all) {
    if (i.dtype == dtype && i.head_dim == head_dim && i.causal == causal && i.keys == keys)
      return i;
  }
  return {};
}

#else

Instance find_instance(DType, int, bool, int) { return {}; }

#endif

}  // namespace batten::impl::native::sm90
