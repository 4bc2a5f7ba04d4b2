#include "core/error.hpp"
#include "merge/merge.hpp"
#include "problem/tensor_check.hpp"

namespace batten::impl {
namespace {

bool mergeable(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

void check_same_rows(const Extent& out, const Extent& other, const char* name) {
  if (other.batch != out.batch || other.rows != out.rows) {
    invalid("merge: out and {} disagree: {} and {} samples, {} and {} rows", name, out.batch,
            other.batch, out.rows, other.rows);
  }
}

}  // namespace

void merge(const batten_tensor& out, const batten_tensor& lse, const batten_tensor& out2,
           const batten_tensor& lse2, Stream stream) {
  if (out.ndim != 3 && out.ndim != 4) {
    invalid("merge: out has {} dimensions, expected [B, S, H, D] or [T, H, D]", out.ndim);
  }
  const bool packed = out.ndim == 3;
  const std::int64_t heads = out.shape[out.ndim - 2];
  const std::int64_t width = out.shape[out.ndim - 1];
  if (heads < 1 || width < 1) invalid("merge: out has {} heads of {} elements", heads, width);
  const auto out_dtype = static_cast<DType>(out.dtype);
  const auto out2_dtype = static_cast<DType>(out2.dtype);
  for (const auto& [dtype, name] : {std::pair{out_dtype, "out"}, std::pair{out2_dtype, "out2"}}) {
    if (!mergeable(dtype)) {
      invalid("merge: {} is {}, expected float32, float16 or bfloat16", name, name_of(dtype));
    }
  }
  const Device device{static_cast<DeviceType>(out.device.type), out.device.index};
  const auto check = [&](const batten_tensor& t, const Expected& expected) {
    return check_tensor(&t, expected, packed, device, Pointers::required);
  };
  const Extent o = check(out, {"out", out_dtype, heads, width});
  const Extent l = check(lse, {"lse", DType::f32, heads, 0});
  const Extent o2 = check(out2, {"out2", out2_dtype, heads, width});
  const Extent l2 = check(lse2, {"lse2", DType::f32, heads, 0});
  check_same_rows(o, l, "lse");
  check_same_rows(o, o2, "out2");
  check_same_rows(o, l2, "lse2");
  if (overlaps_itself(o)) invalid("merge: out's elements overlap each other");
  if (overlaps_itself(l)) invalid("merge: lse's elements overlap each other");
  check_apart(o, "out", l, "lse");
  for (const auto& [view, name] : {std::pair{&o2, "out2"}, std::pair{&l2, "lse2"}}) {
    check_apart(o, "out", *view, name);
    check_apart(l, "lse", *view, name);
  }
  if (o.empty()) return;

  const MergeCall call{.out = out.data,
                       .lse = static_cast<float*>(lse.data),
                       .out2 = out2.data,
                       .lse2 = static_cast<const float*>(lse2.data),
                       .out_dtype = out_dtype,
                       .out2_dtype = out2_dtype,
                       .batch = o.batch,
                       .rows = o.rows,
                       .heads = heads,
                       .head_dim = width,
                       .out_layout = o.layout,
                       .lse_layout = l.layout,
                       .out2_layout = o2.layout,
                       .lse2_layout = l2.layout};
  check_device_exists(device);
  if (device.is_cpu()) {
    merge_cpu(call);
    return;
  }
#if BATTEN_WITH_CUDA
  const DeviceGuard guard(device);
  merge_cuda(call, stream);
#else
  (void)stream;
#endif
}

}  // namespace batten::impl
