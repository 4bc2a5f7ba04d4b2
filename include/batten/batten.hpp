// batten for C++20: a thin layer over the C ABI. Header-only; link batten::batten.
//
//   batten::Attention attention({.dtype = batten::bf16, .num_heads = 12, .num_kv_heads = 4,
//                                .head_dim = 128}, batten::Device::cuda(0));
//   batten::Receipt receipt = attention.forward(q, k, v, out, {.stream = stream});
//
// Every function throws batten::Error; its message is one line that says what, where and what to
// do.
#pragma once

#include <batten/batten.h>

#include <array>
#include <batten/types.hpp>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace batten {

namespace capi {
inline void check(int status) {
  if (status != BATTEN_OK) throw Error(static_cast<ErrorCode>(status), batten_last_error());
}
}  // namespace capi

// A strided view of memory that the caller owns; the last dimension is contiguous. Views of inputs
// may be made from const memory: batten only writes through `out` and `lse`.
class TensorView {
 public:
  TensorView() = default;

  // Contiguous, row-major. `data` may be null for prepare(). At most 4 dimensions.
  TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
             Device device = Device::cpu())
      : TensorView(data, dtype, std::span(shape.begin(), shape.size()), {}, device) {}

  // With strides in elements; empty strides mean contiguous.
  TensorView(const void* data, DType dtype, std::span<const std::int64_t> shape,
             std::span<const std::int64_t> strides, Device device = Device::cpu()) {
    if (shape.empty() || shape.size() > 4 || (!strides.empty() && strides.size() != shape.size()))
      throw Error(ErrorCode::InvalidArgument,
                  "tensor view: 1 to 4 dimensions, and as many strides as dimensions");
    raw_.data = const_cast<void*>(data);
    raw_.dtype = static_cast<std::int32_t>(dtype);
    raw_.ndim = static_cast<std::int32_t>(shape.size());
    raw_.device = {static_cast<std::int32_t>(device.type), device.index};
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      raw_.shape[i] = shape[i];
      raw_.strides[i] = strides.empty() ? stride : strides[i];
      stride *= shape[i] > 0 ? shape[i] : 1;
    }
  }

  // Host lengths or offsets, int32.
  TensorView(std::span<const std::int32_t> values)  // NOLINT: implicit, so that a span is a view
      : TensorView(values.data(), DType::i32, {static_cast<std::int64_t>(values.size())}) {}
  TensorView(const std::vector<std::int32_t>& values)  // NOLINT: as above
      : TensorView(std::span(values)) {}

  const batten_tensor& raw() const noexcept { return raw_; }
  void* data() const noexcept { return raw_.data; }
  DType dtype() const noexcept { return static_cast<DType>(raw_.dtype); }
  int ndim() const noexcept { return raw_.ndim; }
  std::int64_t shape(int i) const noexcept { return raw_.shape[i]; }
  std::int64_t stride(int i) const noexcept { return raw_.strides[i]; }

 private:
  batten_tensor raw_{};
};

// What a layer fixes; see batten_problem.
struct Problem {
  DType dtype = DType::none;
  int num_heads = 0;
  int num_kv_heads = 0;  // 0: as num_heads
  int head_dim = 0;
  int head_dim_v = 0;             // 0: as head_dim
  DType out_dtype = DType::none;  // none: as dtype; f32: unrounded, for merge()
  Mask mask = Mask::none;
  std::optional<double> scale = {};  // 1/sqrt(head_dim)
  bool batch_invariant = false;
};

// How a problem is to be served; see batten_options.
struct Options {
  std::string backend = {};  // empty: environment, then "auto"
  int num_threads = 0;       // CPU; 0: all
};

// What a dense (BSHD) call may add.
struct CallOptions {
  std::optional<TensorView> lse = {};  // fp32 [B, Sq, Hq]
  std::optional<TensorView> q_lengths = {};
  std::optional<TensorView> kv_lengths = {};
  std::optional<double> scale = {};
  bool padding_is_finite = false;
  void* stream = nullptr;  // cudaStream_t
  void* workspace = nullptr;
  std::uint64_t workspace_size = 0;
};

// What a packed call adds. Host offsets give max_q and max_kv where those are 0.
struct PackedOptions {
  TensorView offsets_q = {};
  TensorView offsets_kv = {};
  std::int64_t max_q = 0;
  std::int64_t max_kv = 0;
  std::optional<TensorView> lse = {};  // fp32 [Tq, Hq]
  std::optional<TensorView> q_lengths = {};
  std::optional<TensorView> kv_lengths = {};
  std::optional<double> scale = {};
  bool padding_is_finite = false;
  void* stream = nullptr;  // cudaStream_t
  void* workspace = nullptr;
  std::uint64_t workspace_size = 0;
};

// A uniform BSHD shape, for prepare() without tensors at hand.
struct Shape {
  std::int64_t batch = 1;
  std::int64_t q = 0;
  std::int64_t kv = 0;
  bool lse = false;
};

// What ran, and why; see batten_receipt. Costs no allocation: it is returned by every call.
class Receipt {
 public:
  Receipt() noexcept { raw_.struct_size = sizeof(raw_); }
  explicit Receipt(const batten_receipt& raw) noexcept : raw_(raw) {}

  // Texts live as long as the receipt.
  std::string_view backend() const noexcept { return raw_.backend; }
  std::string_view form() const noexcept { return raw_.form; }
  std::string_view kernel() const noexcept { return raw_.kernel; }
  std::string_view tile() const noexcept { return raw_.tile; }
  std::string_view library() const noexcept { return raw_.library; }
  std::string_view reason() const noexcept { return raw_.reason; }
  int splits() const noexcept { return raw_.splits; }
  bool plan_reused() const noexcept { return raw_.plan_reused != 0; }
  std::uint64_t workspace_size() const noexcept { return raw_.workspace_size; }  // bytes

  const batten_receipt& raw() const noexcept { return raw_; }

 private:
  batten_receipt raw_{};
};

// The structs of the C ABI. They point into what they are made from.
namespace capi {
inline batten_problem raw(const Problem& problem) {
  batten_problem p{};
  p.struct_size = sizeof(p);
  p.dtype = static_cast<std::int32_t>(problem.dtype);
  p.out_dtype = static_cast<std::int32_t>(problem.out_dtype);
  p.num_heads = problem.num_heads;
  p.num_kv_heads = problem.num_kv_heads;
  p.head_dim = problem.head_dim;
  p.head_dim_v = problem.head_dim_v;
  p.mask = static_cast<std::int32_t>(problem.mask);
  p.has_scale = problem.scale.has_value();
  p.scale = problem.scale.value_or(0.0);
  p.batch_invariant = problem.batch_invariant;
  return p;
}
// Points into `options`.
inline batten_options raw(const Options& options) {
  batten_options o{};
  o.struct_size = sizeof(o);
  o.backend = options.backend.empty() ? nullptr : options.backend.c_str();
  o.num_threads = options.num_threads;
  return o;
}
inline batten_device raw(Device device) {
  return {static_cast<std::int32_t>(device.type), device.index};
}
inline const batten_tensor* raw(const std::optional<TensorView>& view) {
  return view ? &view->raw() : nullptr;
}

// What dense and packed calls have in common.
template <class AnyOptions>
batten_call common_call(const TensorView& q, const TensorView& k, const TensorView& v,
                        const TensorView& out, const AnyOptions& o) {
  batten_call c{};
  c.struct_size = sizeof(c);
  c.q = &q.raw();
  c.k = &k.raw();
  c.v = &v.raw();
  c.out = &out.raw();
  c.lse = raw(o.lse);
  c.q_lengths = raw(o.q_lengths);
  c.kv_lengths = raw(o.kv_lengths);
  c.has_scale = o.scale.has_value();
  if (o.scale) c.scale = *o.scale;
  c.padding_is_finite = o.padding_is_finite;
  c.stream = o.stream;
  c.workspace = o.workspace;
  c.workspace_size = o.workspace_size;
  return c;
}
inline batten_call dense_call(const TensorView& q, const TensorView& k, const TensorView& v,
                              const TensorView& out, const CallOptions& o) {
  return common_call(q, k, v, out, o);
}
inline batten_call packed_call(const TensorView& q, const TensorView& k, const TensorView& v,
                               const TensorView& out, const PackedOptions& o) {
  batten_call c = common_call(q, k, v, out, o);
  c.offsets_q = &o.offsets_q.raw();
  c.offsets_kv = &o.offsets_kv.raw();
  c.max_q = o.max_q;
  c.max_kv = o.max_kv;
  return c;
}

// What `write(buffer, capacity, &needed)` gives, whose length is not known before.
template <class Write>
std::string text(const Write& write) {
  std::size_t needed = 0;
  check(write(nullptr, std::size_t{0}, &needed));
  std::string json(needed, '\0');
  check(write(json.data(), json.size(), &needed));
  json.resize(json.find('\0') == std::string::npos ? needed : json.find('\0'));
  return json;
}
inline std::string explain(const Problem& problem, Device device, const Options& options,
                           const batten_call& call, const std::string& card) {
  const batten_problem p = raw(problem);
  const batten_options o = raw(options);
  return text([&](char* json, std::size_t capacity, std::size_t* needed) {
    return batten_explain(&p, raw(device), &o, &call, card.empty() ? nullptr : card.c_str(), json,
                          capacity, needed);
  });
}
}  // namespace capi

// One layer's attention on one device: a problem and the backend chosen for it.
class Attention {
 public:
  // Chooses and checks the backend now. Unavailable: the one asked for cannot run here.
  // Unsupported: it does not serve the problem.
  Attention(const Problem& problem, Device device, const Options& options = {})
      : problem_(problem), device_(device) {
    const batten_problem p = capi::raw(problem);
    const batten_options o = capi::raw(options);
    capi::check(batten_attention_create(&p, capi::raw(device), &o, &handle_));
  }
  ~Attention() { batten_attention_destroy(handle_); }
  Attention(Attention&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        problem_(other.problem_),
        device_(other.device_) {}
  Attention& operator=(Attention&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(problem_, other.problem_);
    std::swap(device_, other.device_);
    return *this;
  }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  const Problem& problem() const noexcept { return problem_; }
  Device device() const noexcept { return device_; }

  // q [B,Sq,Hq,D], k [B,Skv,Hkv,D], v [B,Skv,Hkv,Dv], out [B,Sq,Hq,Dv].
  Receipt forward(const TensorView& q, const TensorView& k, const TensorView& v,
                  const TensorView& out, const CallOptions& options = {}) {
    return run(capi::dense_call(q, k, v, out, options));
  }

  // q [Tq,Hq,D], k [Tkv,Hkv,D], v [Tkv,Hkv,Dv], out [Tq,Hq,Dv].
  Receipt forward_packed(const TensorView& q, const TensorView& k, const TensorView& v,
                         const TensorView& out, const PackedOptions& options) {
    return run(capi::packed_call(q, k, v, out, options));
  }

  // Builds the plan that an equal forward will use and reserves its scratch. Views may have null
  // data. Returns the bytes of scratch that a forward needs.
  std::uint64_t prepare(const TensorView& q, const TensorView& k, const TensorView& v,
                        const TensorView& out, const CallOptions& options = {}) {
    return prepare(capi::dense_call(q, k, v, out, options));
  }
  std::uint64_t prepare_packed(const TensorView& q, const TensorView& k, const TensorView& v,
                               const TensorView& out, const PackedOptions& options) {
    return prepare(capi::packed_call(q, k, v, out, options));
  }
  // The same for contiguous BSHD tensors of this shape.
  std::uint64_t prepare(const Shape& shape, void* stream = nullptr) {
    const Views views = contiguous(shape);
    CallOptions options{.stream = stream};
    if (shape.lse) options.lse = views.lse;
    return prepare(views.q, views.k, views.v, views.out, options);
  }
  // The scratch of a forward of this shape, in bytes. Builds the plan if there is none yet.
  std::uint64_t workspace_size(const Shape& shape) { return prepare(shape); }

  batten_attention* handle() const noexcept { return handle_; }

 private:
  struct Views {
    TensorView q, k, v, out, lse;
  };

  Views contiguous(const Shape& s) const {
    const int hkv = problem_.num_kv_heads ? problem_.num_kv_heads : problem_.num_heads;
    const int dv = problem_.head_dim_v ? problem_.head_dim_v : problem_.head_dim;
    const DType out = problem_.out_dtype == DType::none ? problem_.dtype : problem_.out_dtype;
    return {
        .q = {nullptr,
              problem_.dtype,
              {s.batch, s.q, problem_.num_heads, problem_.head_dim},
              device_},
        .k = {nullptr, problem_.dtype, {s.batch, s.kv, hkv, problem_.head_dim}, device_},
        .v = {nullptr, problem_.dtype, {s.batch, s.kv, hkv, dv}, device_},
        .out = {nullptr, out, {s.batch, s.q, problem_.num_heads, dv}, device_},
        .lse = {nullptr, DType::f32, {s.batch, s.q, problem_.num_heads}, device_},
    };
  }

  Receipt run(const batten_call& call) {
    batten_receipt r;  // NOLINT: all of it is written by the call
    r.struct_size = sizeof(r);
    capi::check(batten_forward(handle_, &call, &r));
    return Receipt(r);
  }
  std::uint64_t prepare(const batten_call& call) {
    std::uint64_t bytes = 0;
    capi::check(batten_prepare(handle_, &call, &bytes));
    return bytes;
  }

  batten_attention* handle_ = nullptr;
  Problem problem_;
  Device device_;
};

// JSON text: what `auto` would take for the call and why, see batten_explain. `options.backend` may
// name a backend or a form. With `card` ("h200") the GPU need not be here.
inline std::string explain(const Problem& problem, Device device, const TensorView& q,
                           const TensorView& k, const TensorView& v, const TensorView& out,
                           const CallOptions& call = {}, const Options& options = {},
                           const std::string& card = {}) {
  return capi::explain(problem, device, options, capi::dense_call(q, k, v, out, call), card);
}
inline std::string explain_packed(const Problem& problem, Device device, const TensorView& q,
                                  const TensorView& k, const TensorView& v, const TensorView& out,
                                  const PackedOptions& call, const Options& options = {},
                                  const std::string& card = {}) {
  return capi::explain(problem, device, options, capi::packed_call(q, k, v, out, call), card);
}

// Merges two partial results of the same queries over different keys into (out, lse).
inline void merge(const TensorView& out, const TensorView& lse, const TensorView& out2,
                  const TensorView& lse2, void* stream = nullptr) {
  capi::check(batten_merge(&out.raw(), &lse.raw(), &out2.raw(), &lse2.raw(), stream));
}

// JSON text: versions, devices, backends and why one is not available, workspace pools.
inline std::string info() { return capi::text(&batten_info); }

// Gives the pools' idle scratch memory back.
inline void trim() { capi::check(batten_trim()); }

}  // namespace batten
