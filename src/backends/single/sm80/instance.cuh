// FlashInfer's single-prefill kernel for sm80 and newer behind Launch. Only for translation units
// that instantiate it once; see instance.hpp.
#pragma once

// FlashInfer's headers print CUDA errors to stderr otherwise; here they become batten's.
#ifndef NDEBUG
#define NDEBUG
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
// FlashInfer's headers want this order.
// clang-format off
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>
// clang-format on

#include "backends/single/instance.hpp"
#include "core/cuda_runtime.hpp"

namespace batten::impl::single {

template <DType dtype, int head_dim, bool causal>
struct Sm80 {
  using Element = std::conditional_t<dtype == DType::bf16, nv_bfloat16, half>;
  using Params = flashinfer::SinglePrefillParams<Element, Element, Element>;
  using Variant = flashinfer::DefaultAttention</*custom_mask=*/false, /*sliding_window=*/false,
                                               /*logits_soft_cap=*/false, /*alibi=*/false>;
  static constexpr auto kMask =
      causal ? flashinfer::MaskMode::kCausal : flashinfer::MaskMode::kNone;

  // The kernel writes rows of num_heads * head_dim elements, whatever out_row and out_head say.
  static void launch(const Launch& item, Stream stream) {
    // The kernel only reads its inputs; its parameters just lack the const.
    const auto element = [](const void* data) {
      return static_cast<Element*>(const_cast<void*>(data));
    };
    Params params;
    params.q = element(item.q);
    params.k = element(item.k);
    params.v = element(item.v);
    params.o = static_cast<Element*>(item.out);
    params.lse = item.lse;
    params.group_size = flashinfer::uint_fastdiv(item.num_heads / item.num_kv_heads);
    params.qo_len = item.rows;
    params.kv_len = item.keys;
    params.num_qo_heads = item.num_heads;
    params.num_kv_heads = item.num_kv_heads;
    params.q_stride_n = static_cast<std::uint32_t>(item.q_row);
    params.q_stride_h = static_cast<std::uint32_t>(item.q_head);
    params.k_stride_n = static_cast<std::uint32_t>(item.k_row);
    params.k_stride_h = static_cast<std::uint32_t>(item.k_head);
    params.v_stride_n = static_cast<std::uint32_t>(item.v_row);
    params.v_stride_h = static_cast<std::uint32_t>(item.v_head);
    params.head_dim = head_dim;
    params.window_left = -1;
    params.sm_scale = item.scale;
    params.rope_rcp_scale = 1;
    params.rope_rcp_theta = 1;
    try {
      check_cuda(
          flashinfer::SinglePrefillWithKVCacheDispatched<
              head_dim, head_dim, flashinfer::PosEncodingMode::kNone,
              /*USE_FP16_QK_REDUCTION=*/false, kMask, Variant>(
              params, static_cast<Element*>(item.scratch), static_cast<cudaStream_t>(stream)),
          "flashinfer's sm80 kernel");
    } catch (const flashinfer::Error& error) {
      throw Error(ErrorCode::Internal, std::string("single: flashinfer: ") + error.what());
    }
  }
};

template <DType dtype, int head_dim, bool causal>
Instance sm80_instance() {
  // FlashInfer chooses the tile at each call: 16, 64 or 128 packed rows, and the keys that fit.
  return {"flashinfer single_prefill sm80 (FA2)", "by row count", nullptr,
          Sm80<dtype, head_dim, causal>::launch};
}

}  // namespace batten::impl::single
