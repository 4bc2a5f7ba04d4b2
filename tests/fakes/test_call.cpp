#include "fakes/test_call.hpp"

#include <utility>

namespace batten::testing {
namespace {

constexpr std::uintptr_t kSpacing = std::uintptr_t{1} << 32;  // bytes between two tensors

std::uintptr_t address_of(int slot) { return kSpacing * static_cast<std::uintptr_t>(slot + 1); }

batten_tensor array_of(std::vector<std::int32_t>& values, Device device) {
  return tensor_at(reinterpret_cast<std::uintptr_t>(values.data()), DType::i32,
                   {static_cast<std::int64_t>(values.size())}, device);
}

DType dtype_of(const batten_problem& p) { return static_cast<DType>(p.dtype); }
DType out_dtype_of(const batten_problem& p) {
  return p.out_dtype == BATTEN_DTYPE_NONE ? dtype_of(p) : static_cast<DType>(p.out_dtype);
}

}  // namespace

batten_problem good_problem(DType dtype, int heads, int kv_heads, int head_dim) {
  batten_problem p{};
  p.struct_size = sizeof(p);
  p.dtype = static_cast<std::int32_t>(dtype);
  p.num_heads = heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = head_dim;
  return p;
}

batten_tensor tensor_at(std::uintptr_t address, DType dtype, std::vector<std::int64_t> shape,
                        Device device) {
  batten_tensor t{};
  t.data = reinterpret_cast<void*>(address);
  t.dtype = static_cast<std::int32_t>(dtype);
  t.ndim = static_cast<std::int32_t>(shape.size());
  t.device = {static_cast<std::int32_t>(device.type), device.index};
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    t.shape[i] = shape[i];
    t.strides[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  return t;
}

TestCall::TestCall(const batten_problem& wanted, Device on) : TestCall(wanted, on, Size{}) {}

TestCall::TestCall(const batten_problem& wanted, Device on, Size size)
    : problem(wanted), device(on) {
  const int kv_heads = problem.num_kv_heads != 0 ? problem.num_kv_heads : problem.num_heads;
  const int dim_v = problem.head_dim_v != 0 ? problem.head_dim_v : problem.head_dim;
  const DType dtype = dtype_of(problem);
  q = tensor_at(address_of(0), dtype, {size.batch, size.q, problem.num_heads, problem.head_dim},
                device);
  k = tensor_at(address_of(1), dtype, {size.batch, size.kv, kv_heads, problem.head_dim}, device);
  v = tensor_at(address_of(2), dtype, {size.batch, size.kv, kv_heads, dim_v}, device);
  out = tensor_at(address_of(3), out_dtype_of(problem),
                  {size.batch, size.q, problem.num_heads, dim_v}, device);
  raw.struct_size = sizeof(raw);
  raw.q = &q;
  raw.k = &k;
  raw.v = &v;
  raw.out = &out;
}

std::unique_ptr<TestCall> TestCall::packed(const batten_problem& problem, Device device,
                                           std::vector<std::int32_t> offsets_q,
                                           std::vector<std::int32_t> offsets_kv) {
  const Size size{.batch = 1, .q = offsets_q.back(), .kv = offsets_kv.back()};
  auto call = std::make_unique<TestCall>(problem, device, size);
  for (batten_tensor* t : {&call->q, &call->k, &call->v, &call->out}) {
    *t = tensor_at(reinterpret_cast<std::uintptr_t>(t->data), static_cast<DType>(t->dtype),
                   {t->shape[1], t->shape[2], t->shape[3]}, device);
  }
  call->offset_q_values = std::move(offsets_q);
  call->offset_kv_values = std::move(offsets_kv);
  call->offsets_q = array_of(call->offset_q_values, Device::cpu());
  call->offsets_kv = array_of(call->offset_kv_values, Device::cpu());
  call->raw.offsets_q = &call->offsets_q;
  call->raw.offsets_kv = &call->offsets_kv;
  return call;
}

TestCall& TestCall::with_lse() {
  std::vector<std::int64_t> shape(out.shape, out.shape + out.ndim - 1);
  lse = tensor_at(address_of(4), DType::f32, std::move(shape), device);
  raw.lse = &lse;
  return *this;
}

TestCall& TestCall::with_q_lengths(std::vector<std::int32_t> values, bool on_device) {
  q_length_values = std::move(values);
  q_lengths = array_of(q_length_values, on_device ? device : Device::cpu());
  raw.q_lengths = &q_lengths;
  return *this;
}

TestCall& TestCall::with_kv_lengths(std::vector<std::int32_t> values, bool on_device) {
  kv_length_values = std::move(values);
  kv_lengths = array_of(kv_length_values, on_device ? device : Device::cpu());
  raw.kv_lengths = &kv_lengths;
  return *this;
}

TestCall& TestCall::offsets_on_device(std::int64_t max_q, std::int64_t max_kv) {
  offsets_q = array_of(offset_q_values, device);
  offsets_kv = array_of(offset_kv_values, device);
  raw.max_q = max_q;
  raw.max_kv = max_kv;
  return *this;
}

}  // namespace batten::testing
