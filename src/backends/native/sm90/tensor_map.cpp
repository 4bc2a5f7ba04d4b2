#include "backends/native/sm90/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "core/cuda_runtime.hpp"
#include "core/error.hpp"

namespace batten::impl::native::sm90 {
namespace {

using Encoder = decltype(&cuTensorMapEncodeTiled);

Encoder encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &result),
               "native: looking up cuTensorMapEncodeTiled");
    if (function == nullptr) {
      fail(ErrorCode::Device, "native: the driver has no cuTensorMapEncodeTiled; update it");
    }
    return reinterpret_cast<Encoder>(function);
  }();
  return found;
}

// A row of a box is 128 bytes. With 256, calls that read their keys once got 3.7 TB/s of HBM
// instead of 4.1 (H200); others are as fast with either.
constexpr CUtensorMapL2promotion kPromotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

}  // namespace

void load_encoder() { (void)encoder(); }

CUtensorMap encode(const void* data, const MapShape& shape, const Layout& layout, int columns,
                   int box_rows) {
  constexpr cuuint64_t kElement = 2;
  const auto entries = [](std::int64_t count, std::int64_t stride) {
    return static_cast<cuuint64_t>(count > 1 && stride != 0 ? count : 1);
  };
  // A dimension with one entry is never stepped along, but wants a stride that passes for one.
  const auto bytes = [&](std::int64_t count, std::int64_t stride) {
    return kElement *
           static_cast<cuuint64_t>(entries(count, stride) == 1 ? shape.head_dim : stride);
  };
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(shape.head_dim),
                               entries(shape.heads, layout.head), entries(shape.rows, layout.row),
                               entries(shape.samples, layout.batch)};
  const cuuint64_t strides[3] = {bytes(shape.heads, layout.head), bytes(shape.rows, layout.row),
                                 bytes(shape.samples, layout.batch)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(columns), 1, static_cast<cuuint32_t>(box_rows),
                             1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encoder()(&map,
                                    shape.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                               : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                    4, const_cast<void*>(data), sizes, strides, box, steps,
                                    CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                    kPromotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fail(ErrorCode::Device, "native: cuTensorMapEncodeTiled failed with CUresult {}",
         static_cast<int>(result));
  }
  return map;
}

}  // namespace batten::impl::native::sm90
