// The Python module's native half: DLPack tensors and raw views onto the C ABI. No torch in sight, so one
// build serves every torch.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <batten/batten.hpp>

namespace nb = nanobind;

namespace {

using batten::Error;
using batten::ErrorCode;

// One tensor as Python states it: (pointer, dtype, shape, strides, device type, device index). Strides in
// elements. The owner must stay alive during the call; on a GPU the stream orders later use of its memory.
using RawView = std::tuple<std::uintptr_t, std::int32_t, std::vector<std::int64_t>, std::vector<std::int64_t>,
                           std::int32_t, std::int32_t>;

batten_tensor tensor_of(const RawView& view) {
  const auto& [data, dtype, shape, strides, device_type, device_index] = view;
  if (shape.empty() || shape.size() > 4 || strides.size() != shape.size()) {
    throw Error(ErrorCode::InvalidArgument, "tensor: expected 1 to 4 dimensions, got " +
                                                std::to_string(shape.size()));
  }
  batten_tensor t{};
  t.data = reinterpret_cast<void*>(data);  // NOLINT: an address is what Python can hand over
  t.dtype = dtype;
  t.ndim = static_cast<std::int32_t>(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) {
    t.shape[i] = shape[i];
    t.strides[i] = strides[i];
  }
  t.device = {device_type, device_index};
  return t;
}

// The DLPack type as a batten dtype; 0 for one that batten does not know.
std::int32_t dtype_of(const nb::dlpack::dtype& dtype) {
  if (dtype.lanes != 1) return BATTEN_DTYPE_NONE;
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  if (code == nb::dlpack::dtype_code::Float && dtype.bits == 32) return BATTEN_F32;
  if (code == nb::dlpack::dtype_code::Float && dtype.bits == 16) return BATTEN_F16;
  if (code == nb::dlpack::dtype_code::Bfloat && dtype.bits == 16) return BATTEN_BF16;
  if (code == nb::dlpack::dtype_code::Int && dtype.bits == 32) return BATTEN_I32;
  return BATTEN_DTYPE_NONE;
}

// The raw view of any DLPack tensor: NumPy, CuPy, JAX, torch.
RawView view_of(const nb::ndarray<>& array) {
  std::int32_t device = BATTEN_CPU;
  if (array.device_type() == nb::device::cuda::value) {
    device = BATTEN_CUDA;
  } else if (array.device_type() != nb::device::cpu::value && array.device_type() != nb::device::cuda_host::value) {
    throw Error(ErrorCode::InvalidArgument, "tensor: expected one on the CPU or a CUDA device");
  }
  std::vector<std::int64_t> shape, strides;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape.push_back(static_cast<std::int64_t>(array.shape(i)));
    strides.push_back(array.stride(i));
  }
  const std::int32_t index = device == BATTEN_CUDA ? array.device_id() : 0;
  return {reinterpret_cast<std::uintptr_t>(array.data()), dtype_of(array.dtype()), std::move(shape), std::move(strides),
          device, index};
}

nb::dict receipt_dict(const batten_receipt& r) {
  nb::dict d;
  d["backend"] = r.backend;
  d["form"] = r.form;
  d["kernel"] = r.kernel;
  d["tile"] = r.tile;
  d["splits"] = r.splits;
  d["plan_reused"] = r.plan_reused != 0;
  d["workspace_size"] = r.workspace_size;
  d["library"] = r.library;
  d["reason"] = r.reason;
  return d;
}

// The receipt of this thread's last forward, as a struct: made into Python objects only when asked for.
thread_local batten_receipt last_receipt{};

class Attention {
 public:
  Attention(std::int32_t dtype, std::int32_t out_dtype, int num_heads, int num_kv_heads, int head_dim, int head_dim_v,
            int mask, std::optional<double> scale, bool batch_invariant, std::int32_t device_type,
            std::int32_t device_index, const std::optional<std::string>& backend, int num_threads) {
    batten_problem problem{};
    problem.struct_size = sizeof(problem);
    problem.dtype = dtype;
    problem.out_dtype = out_dtype;
    problem.num_heads = num_heads;
    problem.num_kv_heads = num_kv_heads;
    problem.head_dim = head_dim;
    problem.head_dim_v = head_dim_v;
    problem.mask = mask;
    problem.has_scale = scale.has_value();
    problem.scale = scale.value_or(0.0);
    problem.batch_invariant = batch_invariant;
    batten_options options{};
    options.struct_size = sizeof(options);
    options.backend = backend ? backend->c_str() : nullptr;
    options.num_threads = num_threads;
    batten::capi::check(batten_attention_create(&problem, {device_type, device_index}, &options, &handle_));
  }
  ~Attention() { batten_attention_destroy(handle_); }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  void forward(const RawView& q, const RawView& k, const RawView& v, const RawView& out,
               const std::optional<RawView>& lse, const std::optional<RawView>& q_lengths,
               const std::optional<RawView>& kv_lengths, const std::optional<RawView>& offsets_q,
               const std::optional<RawView>& offsets_kv, std::int64_t max_q, std::int64_t max_kv,
               std::optional<double> scale, bool padding_is_finite, std::uintptr_t stream) {
    batten_tensor views[9];
    batten_call call{};
    call.struct_size = sizeof(call);
    int used = 0;
    const auto keep = [&](const RawView& view) -> const batten_tensor* {
      views[used] = tensor_of(view);
      return &views[used++];
    };
    const auto maybe = [&](const std::optional<RawView>& view) { return view ? keep(*view) : nullptr; };
    call.q = keep(q);
    call.k = keep(k);
    call.v = keep(v);
    call.out = keep(out);
    call.lse = maybe(lse);
    call.q_lengths = maybe(q_lengths);
    call.kv_lengths = maybe(kv_lengths);
    call.offsets_q = maybe(offsets_q);
    call.offsets_kv = maybe(offsets_kv);
    call.max_q = max_q;
    call.max_kv = max_kv;
    call.has_scale = scale.has_value();
    call.scale = scale.value_or(0.0);
    call.padding_is_finite = padding_is_finite;
    call.stream = reinterpret_cast<void*>(stream);  // NOLINT: as above
    last_receipt.struct_size = sizeof(last_receipt);
    int status = BATTEN_OK;
    {
      const nb::gil_scoped_release release;
      status = batten_forward(handle_, &call, &last_receipt);
    }
    batten::capi::check(status);
  }

 private:
  batten_attention* handle_ = nullptr;
};

void merge(const RawView& out, const RawView& lse, const RawView& out2, const RawView& lse2, std::uintptr_t stream) {
  const batten_tensor views[] = {tensor_of(out), tensor_of(lse), tensor_of(out2), tensor_of(lse2)};
  int status = BATTEN_OK;
  {
    const nb::gil_scoped_release release;
    status = batten_merge(&views[0], &views[1], &views[2], &views[3], reinterpret_cast<void*>(stream));  // NOLINT
  }
  batten::capi::check(status);
}

// Raises the Python exception of batten._errors that has the error's code.
void translate(const std::exception_ptr& pointer, void* /*payload*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const nb::object type = nb::module_::import_("batten._errors").attr(batten::name_of(error.code()));
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nb::register_exception_translator(translate);
  m.def("version", &batten_version);
  m.def("info_json", &batten::info);
  m.def("trim", &batten::trim);
  m.def("view_of", &view_of, nb::arg("array"));
  m.def("merge", &merge);
  m.def("last_receipt", []() -> std::optional<nb::dict> {
    if (last_receipt.backend[0] == '\0') return std::nullopt;
    return receipt_dict(last_receipt);
  });
  m.def("set_log_level", &batten_set_log_level);
  nb::class_<Attention>(m, "Attention")
      .def(nb::init<std::int32_t, std::int32_t, int, int, int, int, int, std::optional<double>, bool, std::int32_t,
                    std::int32_t, const std::optional<std::string>&, int>())
      .def("forward", &Attention::forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
           nb::arg("lse").none(), nb::arg("q_lengths").none(), nb::arg("kv_lengths").none(),
           nb::arg("offsets_q").none(), nb::arg("offsets_kv").none(), nb::arg("max_q"), nb::arg("max_kv"),
           nb::arg("scale").none(), nb::arg("padding_is_finite"), nb::arg("stream"));
}
