#include "problem/validate.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/error.hpp"
#include "problem/tensor_check.hpp"

namespace batten::impl {
namespace {

constexpr std::int64_t kMaxHeads = 1 << 16;
constexpr std::int64_t kMaxHeadDim = 1 << 12;

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

// ---- lengths and offsets ----------------------------------------------------------------------

void check_one_lengths(const char* name, const std::int32_t* lengths, std::int64_t batch,
                       std::int64_t rows) {
  if (lengths == nullptr) return;
  for (std::int64_t b = 0; b < batch; ++b) {
    if (lengths[b] < 0 || lengths[b] > rows) {
      invalid("{}[{}] is {}, expected 0 to {}", name, b, lengths[b], rows);
    }
  }
}

struct Lengths {
  const char* name;
  const std::int32_t* data;  // null: not given, or not for the host to read
  bool given;
};

void check_one_offsets(const char* name, const char* max_name, const std::int32_t* offsets,
                       const Lengths& lengths, std::int64_t batch, std::int64_t tokens,
                       std::int64_t bound) {
  if (offsets == nullptr) return check_one_lengths(lengths.name, lengths.data, batch, bound);
  if (offsets[0] < 0) invalid("{}[0] is {}, offsets start at 0 or later", name, offsets[0]);
  for (std::int64_t b = 0; b < batch; ++b) {
    if (offsets[b + 1] < offsets[b]) {
      invalid("{}[{}] is {} after {}, offsets must not decrease", name, b + 1, offsets[b + 1],
              offsets[b]);
    }
    const std::int64_t rows = offsets[b + 1] - offsets[b];
    if (lengths.given && lengths.data == nullptr) continue;
    const std::int64_t length = lengths.given ? lengths.data[b] : rows;
    if (length < 0 || length > rows) {
      invalid("length {} of sample {} does not lie within its {} rows of {}", length, b, rows,
              name);
    }
    if (length > bound) {
      invalid("{} is {}, but sample {} has {} tokens", max_name, bound, b, length);
    }
  }
  if (offsets[batch] > tokens) {
    invalid("{}[{}] is {}, past the end of a buffer of {} tokens", name, batch, offsets[batch],
            tokens);
  }
}

// The longest sample of host offsets, for calls that leave max_q or max_kv out.
std::int64_t longest(const std::int32_t* offsets, std::int64_t batch) {
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    most = std::max<std::int64_t>(most, std::int64_t{offsets[b + 1]} - offsets[b]);
  }
  return most;
}

std::int64_t check_bound(const char* name, std::int64_t bound, const Array& offsets,
                         std::int64_t batch, std::int64_t tokens) {
  if (bound < 0) invalid("{} is {}, it must not be negative", name, bound);
  if (bound == 0) {
    if (offsets.source == Source::host && offsets.data != nullptr)
      return longest(offsets.data, batch);
    if (tokens > 0) {
      invalid("{} is missing: give an upper bound when the offsets are on the device", name);
    }
  }
  return std::min(bound, tokens);
}

bool all_equal_to(const std::int32_t* lengths, std::int64_t batch, std::int64_t value) {
  return std::all_of(lengths, lengths + batch, [&](std::int32_t n) { return n == value; });
}

bool evenly_spaced(const std::int32_t* offsets, std::int64_t batch) {
  const std::int64_t step = std::int64_t{offsets[1]} - offsets[0];
  for (std::int64_t b = 1; b < batch; ++b) {
    if (std::int64_t{offsets[b + 1]} - offsets[b] != step) return false;
  }
  return true;
}

void check_scale(const char* where, double scale) {
  if (!std::isfinite(static_cast<float>(scale))) {
    invalid("{}: scale is {}, it must be finite as a float32", where, scale);
  }
}

// ---- simplification ---------------------------------------------------------------------------

void drop_full_lengths(Shape& s, Call& c) {
  if (s.packed) return;
  if (s.q_lengths == Source::host && c.q_lengths && all_equal_to(c.q_lengths, s.batch, s.max_q)) {
    s.q_lengths = Source::none;
    c.q_lengths = nullptr;
  }
  if (s.kv_lengths == Source::host && c.kv_lengths &&
      all_equal_to(c.kv_lengths, s.batch, s.max_kv)) {
    s.kv_lengths = Source::none;
    c.kv_lengths = nullptr;
  }
}

const void* advance(const void* data, std::int64_t elements, DType dtype) {
  return data == nullptr ? nullptr
                         : static_cast<const char*>(data) +
                               elements * static_cast<std::int64_t>(size_of(dtype));
}

// A packed batch of equal lengths is a dense one whose batch stride is S rows.
void unpack_uniform(const Problem& p, Shape& s, Call& c) {
  if (!s.packed || s.batch == 0 || s.q_lengths != Source::none || s.kv_lengths != Source::none)
    return;
  if (s.offsets_q != Source::host || s.offsets_kv != Source::host) return;
  if (c.offsets_q == nullptr || c.offsets_kv == nullptr) return;
  if (!evenly_spaced(c.offsets_q, s.batch) || !evenly_spaced(c.offsets_kv, s.batch)) return;
  c.q = advance(c.q, c.offsets_q[0] * s.q.row, p.dtype);
  c.k = advance(c.k, c.offsets_kv[0] * s.k.row, p.dtype);
  c.v = advance(c.v, c.offsets_kv[0] * s.v.row, p.dtype);
  c.out = const_cast<void*>(advance(c.out, c.offsets_q[0] * s.out.row, p.out_dtype));
  if (c.lse != nullptr) c.lse += c.offsets_q[0] * s.lse_layout.row;
  s.max_q = std::int64_t{c.offsets_q[1]} - c.offsets_q[0];
  s.max_kv = std::int64_t{c.offsets_kv[1]} - c.offsets_kv[0];
  s.tokens_q = s.batch * s.max_q;
  s.tokens_kv = s.batch * s.max_kv;
  for (Layout* layout : {&s.q, &s.out, &s.lse_layout}) layout->batch = s.max_q * layout->row;
  for (Layout* layout : {&s.k, &s.v}) layout->batch = s.max_kv * layout->row;
  s.packed = false;
  s.offsets_q = s.offsets_kv = Source::none;
  c.offsets_q = c.offsets_kv = nullptr;
}

}  // namespace

ValidatedProblem validate_problem(const batten_problem& raw) {
  const auto dtype = static_cast<DType>(raw.dtype);
  const auto out = raw.out_dtype == BATTEN_DTYPE_NONE ? dtype : static_cast<DType>(raw.out_dtype);
  if (!is_float(dtype)) {
    invalid("problem: dtype {} ({}), expected float32, float16 or bfloat16", raw.dtype,
            dtype_text(raw.dtype));
  }
  if (out != dtype && out != DType::f32) {
    invalid("problem: out_dtype {}, expected that of the inputs ({}) or float32",
            dtype_text(raw.out_dtype), name_of(dtype));
  }
  const int kv_heads = raw.num_kv_heads == 0 ? raw.num_heads : raw.num_kv_heads;
  if (raw.num_heads < 1 || raw.num_heads > kMaxHeads) {
    invalid("problem: num_heads is {}, expected 1 to {}", raw.num_heads, kMaxHeads);
  }
  if (kv_heads < 1 || raw.num_heads % kv_heads != 0) {
    invalid("problem: num_heads ({}) is not a multiple of num_kv_heads ({})", raw.num_heads,
            kv_heads);
  }
  const int dim_v = raw.head_dim_v == 0 ? raw.head_dim : raw.head_dim_v;
  if (raw.head_dim < 1 || raw.head_dim > kMaxHeadDim) {
    invalid("problem: head_dim is {}, expected 1 to {}", raw.head_dim, kMaxHeadDim);
  }
  if (dim_v < 1 || dim_v > kMaxHeadDim) {
    invalid("problem: head_dim_v is {}, expected 1 to {}", raw.head_dim_v, kMaxHeadDim);
  }
  if (raw.mask < BATTEN_MASK_NONE || raw.mask > BATTEN_MASK_CAUSAL_TOP_LEFT) {
    fail(ErrorCode::Unsupported, "problem: mask kind {} is not known to batten {}", raw.mask,
         batten_version());
  }
  if (raw.has_scale) check_scale("problem", raw.scale);
  ValidatedProblem v;
  v.problem = {.dtype = dtype,
               .out_dtype = out,
               .num_heads = raw.num_heads,
               .num_kv_heads = kv_heads,
               .head_dim = raw.head_dim,
               .head_dim_v = dim_v,
               .mask = static_cast<Mask>(raw.mask),
               .batch_invariant = raw.batch_invariant != 0};
  v.scale = raw.has_scale ? raw.scale : 1.0 / std::sqrt(static_cast<double>(raw.head_dim));
  return v;
}

void check_lengths(const Shape& s, const Call& c) {
  if (s.packed) {
    check_one_offsets("offsets_q", "max_q", c.offsets_q,
                      {"q_lengths", c.q_lengths, s.q_lengths != Source::none}, s.batch, s.tokens_q,
                      s.max_q);
    check_one_offsets("offsets_kv", "max_kv", c.offsets_kv,
                      {"kv_lengths", c.kv_lengths, s.kv_lengths != Source::none}, s.batch,
                      s.tokens_kv, s.max_kv);
  } else {
    check_one_lengths("q_lengths", c.q_lengths, s.batch, s.max_q);
    check_one_lengths("kv_lengths", c.kv_lengths, s.batch, s.max_kv);
  }
}

ValidatedCall validate_call(const ValidatedProblem& problem, Device device, const batten_call& raw,
                            Pointers pointers) {
  const Problem& p = problem.problem;
  if ((raw.offsets_q == nullptr) != (raw.offsets_kv == nullptr)) {
    invalid("{} is missing: a packed call gives offsets_q and offsets_kv",
            raw.offsets_q == nullptr ? "offsets_q" : "offsets_kv");
  }
  const bool packed = raw.offsets_q != nullptr;

  const Extent q =
      check_tensor(raw.q, {"q", p.dtype, p.num_heads, p.head_dim}, packed, device, pointers);
  const Extent k =
      check_tensor(raw.k, {"k", p.dtype, p.num_kv_heads, p.head_dim}, packed, device, pointers);
  const Extent v =
      check_tensor(raw.v, {"v", p.dtype, p.num_kv_heads, p.head_dim_v}, packed, device, pointers);
  const Extent out = check_tensor(raw.out, {"out", p.out_dtype, p.num_heads, p.head_dim_v}, packed,
                                  device, pointers);
  Extent lse;
  if (raw.lse != nullptr) {
    lse = check_tensor(raw.lse, {"lse", DType::f32, p.num_heads, 0}, packed, device, pointers);
  }
  const auto same_rows = [&](const Extent& a, const char* a_name, const Extent& b,
                             const char* b_name) {
    if (a.batch != b.batch || a.rows != b.rows) {
      invalid("{} and {} disagree: {} and {} samples, {} and {} rows", a_name, b_name, a.batch,
              b.batch, a.rows, b.rows);
    }
  };
  same_rows(q, "q", out, "out");
  same_rows(k, "k", v, "v");
  if (raw.lse != nullptr) same_rows(q, "q", lse, "lse");
  if (q.batch != k.batch) invalid("q and k disagree: {} and {} samples", q.batch, k.batch);

  ValidatedCall result;
  Shape& s = result.shape;
  Call& c = result.call;
  s.packed = packed;
  s.batch = packed ? raw.offsets_q->shape[0] - 1 : q.batch;
  if (packed && (raw.offsets_q->ndim != 1 || s.batch < 0)) {
    invalid("offsets_q: expected a one-dimensional int32 array of B + 1 entries");
  }
  if (s.batch > kMaxBatch) {
    invalid("offsets_q: {} samples, a call has at most {}", s.batch, kMaxBatch);
  }
  s.lse = raw.lse != nullptr;
  s.padding_is_finite = raw.padding_is_finite != 0;
  s.tokens_q = packed ? q.rows : q.batch * q.rows;
  s.tokens_kv = packed ? k.rows : k.batch * k.rows;
  s.q = q.layout;
  s.k = k.layout;
  s.v = v.layout;
  s.out = out.layout;
  s.lse_layout = lse.layout;

  const Array offsets_q = check_array(raw.offsets_q, "offsets_q", s.batch + 1, device, pointers);
  const Array offsets_kv = check_array(raw.offsets_kv, "offsets_kv", s.batch + 1, device, pointers);
  const Array q_lengths = check_array(raw.q_lengths, "q_lengths", s.batch, device, pointers);
  const Array kv_lengths = check_array(raw.kv_lengths, "kv_lengths", s.batch, device, pointers);
  s.max_q = packed ? check_bound("max_q", raw.max_q, offsets_q, s.batch, q.rows) : q.rows;
  s.max_kv = packed ? check_bound("max_kv", raw.max_kv, offsets_kv, s.batch, k.rows) : k.rows;
  s.offsets_q = offsets_q.source;
  s.offsets_kv = offsets_kv.source;
  s.q_lengths = q_lengths.source;
  s.kv_lengths = kv_lengths.source;

  c.q = raw.q->data;
  c.k = raw.k->data;
  c.v = raw.v->data;
  c.out = raw.out->data;
  c.lse = raw.lse != nullptr ? static_cast<float*>(raw.lse->data) : nullptr;
  c.offsets_q = offsets_q.data;
  c.offsets_kv = offsets_kv.data;
  c.q_lengths = q_lengths.data;
  c.kv_lengths = kv_lengths.data;
  c.stream = device.is_cpu() ? nullptr : raw.stream;
  c.scale = raw.has_scale ? raw.scale : problem.scale;
  check_scale("call", c.scale);
  s.scale_is_positive = static_cast<float>(c.scale) > 0;

  // Only what the host may read; device arrays are checked by the kernels' clamps (and
  // BATTEN_CHECK).
  Call host = c;
  if (s.offsets_q != Source::host) host.offsets_q = nullptr;
  if (s.offsets_kv != Source::host) host.offsets_kv = nullptr;
  if (s.q_lengths != Source::host) host.q_lengths = nullptr;
  if (s.kv_lengths != Source::host) host.kv_lengths = nullptr;
  check_lengths(s, host);

  if (overlaps_itself(out))
    invalid("out: elements overlap each other, its strides must not repeat memory");
  if (s.lse && overlaps_itself(lse)) {
    invalid("lse: elements overlap each other, its strides must not repeat memory");
  }
  if (pointers == Pointers::required) {
    for (const auto& [input, name] : {std::pair{&q, "q"}, std::pair{&k, "k"}, std::pair{&v, "v"}}) {
      check_apart(out, "out", *input, name);
      if (s.lse) check_apart(lse, "lse", *input, name);
    }
    if (s.lse) check_apart(out, "out", lse, "lse");
    for (const auto& [array, name, count] : {std::tuple{&q_lengths, "q_lengths", s.batch},
                                             std::tuple{&kv_lengths, "kv_lengths", s.batch},
                                             std::tuple{&offsets_q, "offsets_q", s.batch + 1},
                                             std::tuple{&offsets_kv, "offsets_kv", s.batch + 1}}) {
      if (array->data == nullptr) continue;
      const Extent extent{.data = reinterpret_cast<std::uintptr_t>(array->data),
                          .batch = 1,
                          .rows = 1,
                          .heads = 1,
                          .width = count,
                          .layout = {count, count, count},
                          .element_size = sizeof(std::int32_t)};
      check_apart(out, "out", extent, name);
      if (s.lse) check_apart(lse, "lse", extent, name);
    }
  }

  if (raw.workspace != nullptr && reinterpret_cast<std::uintptr_t>(raw.workspace) % 256 != 0) {
    invalid("workspace: must be aligned to 256 bytes");
  }
  result.workspace = raw.workspace;
  result.workspace_size = static_cast<std::size_t>(raw.workspace_size);

  drop_full_lengths(s, c);
  unpack_uniform(p, s, c);
  return result;
}

}  // namespace batten::impl
