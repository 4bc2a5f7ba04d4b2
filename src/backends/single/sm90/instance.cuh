// FlashInfer's single-prefill kernel for sm90 behind Launch. Only for translation units that
// instantiate it once; see instance.hpp.
//
// FlashInfer's own host function asks the driver for the tensor-map encoder three times, and sets
// the shared-memory limit and reads device attributes at every call. This one launches the same
// kernel with the same arguments, but does all of that once.
#pragma once

// CuTe's host code asserts; a library must not abort. What it asserts is refused before
// (single.cpp).
#ifndef NDEBUG
#define NDEBUG
#endif

#include <cuda_runtime.h>

#include <cutlass/cuda_host_adapter.hpp>
#include <string>

#include "core/cuda_runtime.hpp"

namespace batten::impl::single {

// cuTensorMapEncodeTiled, looked up once. CuTe only prints a failure, and would launch with a map
// of nothing; here it is an error before the launch.
template <class... Args>
CUresult encode_tensor_map(Args... args) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &result),
               "the look-up of cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  if (encode == nullptr) {
    throw Error(ErrorCode::Device, "single: the driver has no cuTensorMapEncodeTiled; update it");
  }
  const CUresult result = encode(args...);
  if (result != CUDA_SUCCESS) {
    throw Error(ErrorCode::Device, "single: cuTensorMapEncodeTiled failed with CUresult " +
                                       std::to_string(static_cast<int>(result)));
  }
  return result;
}

}  // namespace batten::impl::single

// CuTe builds its tensor maps through this macro.
#undef CUTLASS_CUDA_DRIVER_WRAPPER_CALL
#define CUTLASS_CUDA_DRIVER_WRAPPER_CALL(function) batten::impl::single::encode_tensor_map

#include <cuda_bf16.h>
#include <cuda_fp16.h>
// FlashInfer's headers want this order.
// clang-format off
#include <flashinfer/attention/mask.cuh>
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
// clang-format on

#include "backends/single/instance.hpp"

namespace batten::impl::single {

template <DType dtype, int head_dim, bool causal>
struct Sm90 {
  using Element = std::conditional_t<dtype == DType::bf16, cutlass::bfloat16_t, cutlass::half_t>;
  using Params = flashinfer::SinglePrefillParams<Element, Element, Element>;
  static constexpr auto kTile = flashinfer::getCTATileSize<head_dim, head_dim, causal>();
  static constexpr int kTileRows = std::get<0>(kTile);
  static constexpr int kTileKeys = std::get<1>(kTile);
  using Traits =
      flashinfer::AttentionKernelTraits</*USE_TMA_LOAD_KV=*/true, head_dim, head_dim, kTileRows,
                                        kTileKeys, /*NUM_STAGES=*/2, Element, Element, Element,
                                        std::int32_t, flashinfer::StandardAttention>;
  using Mainloop =
      flashinfer::CollectiveMainloop<typename Params::AdditionalParams, Traits, causal>;
  using Epilogue = flashinfer::CollectiveEpilogue<Traits>;
  using Scheduler = flashinfer::SingleTileScheduler;
  static constexpr int kSharedMemory = sizeof(typename Traits::SharedStorage);

  static const void* kernel() {
    return reinterpret_cast<const void*>(
        flashinfer::PrefillWithKVCacheKernel<Mainloop, Epilogue, Traits,
                                             /*LEFT_SLIDING_WINDOW=*/false, causal, Scheduler>);
  }

  static void prepare() {
    check_cuda(
        cudaFuncSetAttribute(kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMemory),
        "cudaFuncSetAttribute");
  }

  static void launch(const Launch& item, Stream stream) {
    using flashinfer::get_gmem_layout;
    typename Params::AdditionalParams additional{};
    additional.sm_scale = item.scale;
    typename Mainloop::Params mainloop = Mainloop::to_underlying_arguments(
        {static_cast<const Element*>(item.q),
         get_gmem_layout(item.rows, item.num_heads, head_dim, item.q_row, item.q_head),
         static_cast<const Element*>(item.k),
         get_gmem_layout(item.keys, item.num_kv_heads, head_dim, item.k_row, item.k_head),
         static_cast<const Element*>(item.v),
         get_gmem_layout(item.keys, item.num_kv_heads, head_dim, item.v_row, item.v_head),
         /*window_left=*/-1, additional});
    typename Epilogue::Params epilogue = Epilogue::to_underlying_arguments(
        {static_cast<Element*>(item.out),
         get_gmem_layout(item.rows, item.num_heads, head_dim, item.out_row, item.out_head),
         item.lse, flashinfer::get_lse_gmem_layout(item.rows, item.num_heads)});
    typename Scheduler::Params scheduler{item.rows, item.keys,
                                         cutlass::FastDivmod(item.num_heads / item.num_kv_heads)};
    const dim3 grid((item.rows + kTileRows - 1) / kTileRows, item.num_heads);
    void* arguments[] = {&mainloop, &epilogue, &scheduler};
    check_cuda(cudaLaunchKernel(kernel(), grid, dim3(Traits::NUM_WARPS * 32), arguments,
                                kSharedMemory, static_cast<cudaStream_t>(stream)),
               "the launch of flashinfer's sm90 kernel");
  }
};

template <DType dtype, int head_dim, bool causal>
Instance sm90_instance() {
  using Kernel = Sm90<dtype, head_dim, causal>;
  static const std::string tile =
      std::to_string(Kernel::kTileRows) + "x" + std::to_string(Kernel::kTileKeys);
  return {"flashinfer single_prefill sm90 (FA3)", tile.c_str(), Kernel::prepare, Kernel::launch};
}

}  // namespace batten::impl::single
