// The Python module's native half: tensors of Python onto the C ABI. No torch in sight, so one
// build serves every torch. Only the limited API of Python is used, so one build serves Python 3.12
// and later.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <batten/batten.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "_layers.hpp"
#include "_tensors.hpp"

namespace batten_python {
namespace {

// Never destroyed: at exit the GPU's driver may be gone before it.
Layers& layers() {
  static Layers* const all = new Layers;
  return *all;
}

// The receipt of this thread's last forward, as a struct: made into Python objects when asked for.
thread_local batten_receipt receipt{};

nb::object last_receipt() {
  if (receipt.backend[0] == '\0') return nb::none();
  nb::dict d;
  d["backend"] = receipt.backend;
  d["form"] = receipt.form;
  d["kernel"] = receipt.kernel;
  d["tile"] = receipt.tile;
  d["splits"] = receipt.splits;
  d["plan_reused"] = receipt.plan_reused != 0;
  d["workspace_size"] = receipt.workspace_size;
  d["library"] = receipt.library;
  d["reason"] = receipt.reason;
  return d;
}

// For a call that computes nothing, such as one on fake tensors.
void forget_receipt() { receipt = {}; }

std::string backend_name(nb::handle name) {
  if (name.is_none()) return {};
  std::string text;
  if (!nb::try_cast(name, text)) {
    throw Error(ErrorCode::InvalidArgument, "backend: expected a name, or None");
  }
  if (text.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                "backend: expected a name, or None for the environment's choice, got ''");
  }
  return text;
}

std::int64_t integer(nb::handle value) {
  const long long number = PyLong_AsLongLong(value.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

double real(nb::handle value) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

bool truth(nb::handle value) {
  const int yes = PyObject_IsTrue(value.ptr());
  if (yes < 0) throw nb::python_error();
  return yes != 0;
}

Problem problem_of(const batten_tensor& q, const batten_tensor& k, const batten_tensor& v,
                   std::int32_t mask, nb::handle backend, std::int32_t out_dtype) {
  if (q.ndim < 3 || k.ndim < 3 || v.ndim < 3) {
    throw Error(ErrorCode::InvalidArgument,
                "q, k and v: expected [B, S, H, D], or [T, H, D] in a packed call");
  }
  return {.dtype = q.dtype,
          .out_dtype = out_dtype,
          .num_heads = q.shape[q.ndim - 2],
          .num_kv_heads = k.shape[k.ndim - 2],
          .head_dim = q.shape[q.ndim - 1],
          .head_dim_v = v.shape[v.ndim - 1],
          .mask = mask,
          .device_type = q.device.type,
          .device_index = q.device.index,
          .backend = backend_name(backend)};
}

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
             nb::handle q_lengths, nb::handle kv_lengths, nb::handle offsets_q,
             nb::handle offsets_kv, nb::handle max_q, nb::handle max_kv, std::int32_t mask,
             nb::handle backend, std::int32_t out_dtype, nb::handle scale,
             nb::handle padding_is_finite, std::uintptr_t stream) {
  std::array<batten_tensor, 9> tensors;
  std::size_t used = 0;
  const auto keep = [&](nb::handle tensor) -> const batten_tensor* {
    if (tensor.is_none()) return nullptr;
    tensors[used] = tensor_of(tensor);
    return &tensors[used++];
  };
  batten_call call{};
  call.struct_size = sizeof(call);
  call.q = keep(q);
  call.k = keep(k);
  call.v = keep(v);
  call.out = keep(out);
  call.lse = keep(lse);
  call.q_lengths = keep(q_lengths);
  call.kv_lengths = keep(kv_lengths);
  call.offsets_q = keep(offsets_q);
  call.offsets_kv = keep(offsets_kv);
  call.max_q = integer(max_q);
  call.max_kv = integer(max_kv);
  call.has_scale = !scale.is_none();
  if (call.has_scale != 0) call.scale = real(scale);
  call.padding_is_finite = truth(padding_is_finite);
  call.stream = reinterpret_cast<void*>(stream);  // NOLINT: an address is what Python has
  const auto layer = layers().get(problem_of(*call.q, *call.k, *call.v, mask, backend, out_dtype));
  receipt.struct_size = sizeof(receipt);
  int status = BATTEN_OK;
  {
    const nb::gil_scoped_release release;
    status = batten_forward(layer->handle(), &call, &receipt);
  }
  batten::capi::check(status);
}

void check(std::int32_t dtype, std::int64_t num_heads, std::int64_t num_kv_heads,
           std::int64_t head_dim, std::int32_t mask, std::int32_t device_type,
           std::int32_t device_index, nb::handle backend) {
  layers().get({.dtype = dtype,
                .num_heads = num_heads,
                .num_kv_heads = num_kv_heads,
                .head_dim = head_dim,
                .head_dim_v = head_dim,
                .mask = mask,
                .device_type = device_type,
                .device_index = device_index,
                .backend = backend_name(backend)});
}

// A uniform BSHD call of tensors that need not be there.
std::string explain(std::int32_t dtype, std::int64_t batch, std::int64_t queries, std::int64_t keys,
                    std::int32_t num_heads, std::int32_t num_kv_heads, std::int32_t head_dim,
                    std::int32_t mask, std::int32_t device_type, std::int32_t device_index,
                    nb::handle backend, const std::string& card) {
  const auto type = static_cast<batten::DType>(dtype);
  const batten::Device device{static_cast<batten::DeviceType>(device_type), device_index};
  const batten::TensorView q(nullptr, type, {batch, queries, num_heads, head_dim}, device);
  const batten::TensorView kv(nullptr, type, {batch, keys, num_kv_heads, head_dim}, device);
  return batten::explain({.dtype = type,
                          .num_heads = num_heads,
                          .num_kv_heads = num_kv_heads,
                          .head_dim = head_dim,
                          .mask = static_cast<batten::Mask>(mask)},
                         device, q, kv, kv, q, {}, {.backend = backend_name(backend)}, card);
}

void merge(nb::handle out, nb::handle lse, nb::handle out2, nb::handle lse2,
           std::uintptr_t stream) {
  const std::array t{tensor_of(out), tensor_of(lse), tensor_of(out2), tensor_of(lse2)};
  int status = BATTEN_OK;
  {
    const nb::gil_scoped_release release;
    status = batten_merge(&t[0], &t[1], &t[2], &t[3],
                          reinterpret_cast<void*>(stream));  // NOLINT: as above
  }
  batten::capi::check(status);
}

void trim() {
  int status = BATTEN_OK;
  {
    const nb::gil_scoped_release release;
    status = batten_trim();
  }
  batten::capi::check(status);
}

// Whether tensors of this type can be given as they are; others are given as views.
bool takes(nb::handle tensor) { return exchange_of(tensor.ptr()) != nullptr; }

// Raises the Python exception of batten._errors that has the error's code.
void translate(const std::exception_ptr& pointer, void* /*payload*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const char* name = batten_status_name(static_cast<int>(error.code()));
    const nb::object type = nb::module_::import_("batten._errors").attr(name);
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace
}  // namespace batten_python

NB_MODULE(_core, m) {
  namespace nb = nanobind;
  namespace bp = batten_python;
  nb::register_exception_translator(bp::translate);
  m.def("version", &batten_version);
  m.def("info_json", &batten::info);
  m.def("last_receipt", &bp::last_receipt);
  m.def("forget_receipt", &bp::forget_receipt);
  m.def("takes", &bp::takes);
  m.def("view_of", &bp::view_of);
  const auto none = [](const char* name) { return nb::arg(name).none(); };
  m.def("forward", &bp::forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
        none("lse"), none("q_lengths"), none("kv_lengths"), none("offsets_q"), none("offsets_kv"),
        nb::arg("max_q"), nb::arg("max_kv"), nb::arg("mask"), none("backend"), nb::arg("out_dtype"),
        none("scale"), nb::arg("padding_is_finite"), nb::arg("stream"));
  m.def("check", &bp::check, nb::arg("dtype"), nb::arg("num_heads"), nb::arg("num_kv_heads"),
        nb::arg("head_dim"), nb::arg("mask"), nb::arg("device_type"), nb::arg("device_index"),
        none("backend"));
  m.def("explain", &bp::explain, nb::arg("dtype"), nb::arg("batch"), nb::arg("queries"),
        nb::arg("keys"), nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"),
        nb::arg("mask"), nb::arg("device_type"), nb::arg("device_index"), none("backend"),
        nb::arg("card"));
  m.def("merge", &bp::merge);
  m.def("trim", &bp::trim);
}
