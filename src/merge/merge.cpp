#include "merge/merge.hpp"

#include <cstring>

#include "core/half.hpp"
#include "core/thread_pool.hpp"
#include "merge/weights.hpp"

namespace batten::impl {
namespace {

struct F32 {
  using Storage = float;
  static float load(float x) { return x; }
  static float store(float x) { return x; }
};
struct F16 {
  using Storage = std::uint16_t;
  static float load(std::uint16_t x) { return half_to_float(x); }
  static std::uint16_t store(float x) { return float_to_half(x); }
};
struct Bf16 {
  using Storage = std::uint16_t;
  static float load(std::uint16_t x) { return bfloat16_to_float(x); }
  static std::uint16_t store(float x) { return float_to_bfloat16(x); }
};

std::int64_t offset(const Layout& layout, std::int64_t b, std::int64_t i, std::int64_t h) {
  return b * layout.batch + i * layout.row + h * layout.head;
}

template <class Out, class In>
void merge_row(const MergeCall& call, std::int64_t b, std::int64_t i, std::int64_t h) {
  float& lse = call.lse[offset(call.lse_layout, b, i, h)];
  auto* out = static_cast<typename Out::Storage*>(call.out) + offset(call.out_layout, b, i, h);
  const auto* out2 =
      static_cast<const typename In::Storage*>(call.out2) + offset(call.out2_layout, b, i, h);

  const MergeWeights weights = merge_weights(lse, call.lse2[offset(call.lse2_layout, b, i, h)]);
  lse = weights.lse;
  switch (weights.action) {
    case RowMerge::keep:
      return;
    case RowMerge::clear:
      for (std::int64_t d = 0; d < call.head_dim; ++d) out[d] = 0;
      return;
    case RowMerge::take_second:
      if constexpr (std::is_same_v<Out, In>) {
        std::memcpy(out, out2, static_cast<std::size_t>(call.head_dim) * sizeof(*out));
      } else {
        for (std::int64_t d = 0; d < call.head_dim; ++d) out[d] = Out::store(In::load(out2[d]));
      }
      return;
    case RowMerge::combine:
      for (std::int64_t d = 0; d < call.head_dim; ++d) {
        out[d] = Out::store(weights.first * Out::load(out[d]) + weights.second * In::load(out2[d]));
      }
      return;
  }
}

using MergeRow = void (*)(const MergeCall&, std::int64_t, std::int64_t, std::int64_t);

template <class Out>
MergeRow row_function(DType in) {
  switch (in) {
    case DType::f16:
      return merge_row<Out, F16>;
    case DType::bf16:
      return merge_row<Out, Bf16>;
    default:
      return merge_row<Out, F32>;
  }
}

MergeRow row_function(DType out, DType in) {
  switch (out) {
    case DType::f16:
      return row_function<F16>(in);
    case DType::bf16:
      return row_function<Bf16>(in);
    default:
      return row_function<F32>(in);
  }
}

}  // namespace

void merge_cpu(const MergeCall& call) {
  const MergeRow merge_row = row_function(call.out_dtype, call.out2_dtype);
  parallel_for(call.batch * call.rows, default_num_threads(), [&](std::int64_t row, int /*slot*/) {
    for (std::int64_t h = 0; h < call.heads; ++h) {
      merge_row(call, row / call.rows, row % call.rows, h);
    }
  });
}

}  // namespace batten::impl
