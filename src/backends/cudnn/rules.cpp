#include "backends/cudnn/rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace batten::impl::cudnn {
namespace {

// A sample whose length is a multiple of this leaves no partial tile of keys in any of cuDNN's
// kernels, so nothing past its end is loaded.
constexpr std::int64_t kWholeTiles = 256;

constexpr bool has_lengths(const Shape& s) noexcept {
  return s.q_lengths != Source::none || s.kv_lengths != Source::none;
}

constexpr bool is_uniform(const Shape& s) noexcept { return !s.packed && !has_lengths(s); }

// Whether cuDNN may load keys or values that are no token of the sample, and multiply them by zero.
bool loads_padding(const Shape& s, Form form) noexcept {
  switch (form) {
    case Form::dense:
      return false;
    case Form::lengths:
      return s.kv_lengths != Source::none;
    case Form::packed:
      return !is_uniform(s) || s.max_kv % kWholeTiles != 0;
  }
  return true;
}

constexpr bool shares_samples(const Shape& s) noexcept {
  return !s.packed && s.batch > 1 && (s.k.batch == 0 || s.v.batch == 0);
}

// Whether all samples' rows lie one after another.
constexpr bool is_one_run(const Layout& layout, std::int64_t rows) noexcept {
  return layout.batch == rows * layout.row;
}

// A stride of 0 that no form states, or nothing.
const char* repeated_rows(const Problem& p, const Shape& s, Form form) noexcept {
  const bool one_query = form != Form::packed && s.max_q == 1;
  if (s.q.row == 0 && !one_query) return "queries";
  if (s.q.head == 0 && p.num_heads > 1) return "queries";
  if (s.q.batch == 0 && form != Form::packed && s.batch > 1 &&
      sharing_of(p, s) != Sharing::repeated) {
    return "queries";
  }
  const bool one_key = form != Form::packed && s.max_kv == 1;
  if (s.k.row == 0 && !one_key) return "keys";
  if (s.v.row == 0 && !one_key) return "values";
  return nullptr;
}

}  // namespace

Sharing sharing_of(const Problem& problem, const Shape& shape) noexcept {
  if (!shares_samples(shape)) return Sharing::none;
  const bool mergeable = problem.mask == Mask::none && shape.k.batch == 0 && shape.v.batch == 0 &&
                         is_one_run(shape.q, shape.max_q) && is_one_run(shape.out, shape.max_q) &&
                         (!shape.lse || is_one_run(shape.lse_layout, shape.max_q));
  return mergeable ? Sharing::merged : Sharing::repeated;
}

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

const char* name_of(Form form) noexcept {
  switch (form) {
    case Form::dense:
      return "dense";
    case Form::packed:
      return "packed";
    case Form::lengths:
      return "lengths";
  }
  return "unknown";
}

std::vector<std::string> forms() {
  return {name_of(Form::dense), name_of(Form::packed), name_of(Form::lengths)};
}

std::optional<Form> parse_form(std::string_view name) noexcept {
  for (const Form form : {Form::dense, Form::packed, Form::lengths}) {
    if (name == name_of(form)) return form;
  }
  return std::nullopt;
}

Form default_form(const Problem& problem, const Shape& shape) noexcept {
  if (shape.packed) return Form::packed;
  if (!has_lengths(shape)) return Form::dense;
  // A sample may have more queries than keys. Only token offsets can leave its first rows out.
  const bool may_have_head = shape.kv_lengths != Source::none || shape.max_q > shape.max_kv;
  if (problem.mask == Mask::causal && may_have_head) return Form::packed;
  if (shares_samples(shape)) return Form::packed;
  return Form::lengths;
}

Form form_of(const Problem& problem, const Shape& shape, std::string_view name) noexcept {
  return parse_form(name).value_or(default_form(problem, shape));
}

std::optional<std::string> why_not(const Problem& p, int arch, std::size_t version) {
  const auto cudnn = [&] { return "cuDNN " + version_text(version); };
  if (arch < kOldestArch) {
    return fmt::format("{} has fused attention for sm80 and newer, this device is sm{}", cudnn(),
                       arch);
  }
  if (p.dtype != DType::f16 && p.dtype != DType::bf16) {
    return fmt::format("{} computes attention of float16 and bfloat16, not of {}", cudnn(),
                       batten::name_of(p.dtype));
  }
  if (p.out_dtype != p.dtype) {
    return fmt::format("{}'s fast attention engines write {} outputs for {} inputs, not {}",
                       cudnn(), batten::name_of(p.dtype), batten::name_of(p.dtype),
                       batten::name_of(p.out_dtype));
  }
  for (const auto& [name, dim] :
       {std::pair{"head_dim", p.head_dim}, std::pair{"head_dim_v", p.head_dim_v}}) {
    if (dim % 8 != 0 || dim > kMaxHeadDim) {
      return fmt::format("{} is {}, {} serves multiples of 8 up to {}", name, dim, cudnn(),
                         kMaxHeadDim);
    }
  }
  if (p.batch_invariant) {
    return cudnn() + " chooses its engine by the whole batch, so batch_invariant cannot be kept";
  }
  return std::nullopt;
}

std::optional<std::string> why_not(const Problem& p, const Shape& s, std::string_view forced,
                                   int arch, std::size_t version) {
  if (is_trivial(s)) return std::nullopt;
  if (!s.scale_is_positive) {
    return fmt::format("cuDNN {} serves scales above 0", version_text(version));
  }
  const Form form = form_of(p, s, forced);
  if (form == Form::dense && !is_uniform(s)) {
    return "the dense form needs samples of one length; cudnn:packed serves this call";
  }
  if (form == Form::lengths && s.packed) {
    return "the lengths form takes BSHD tensors; cudnn:packed serves this call";
  }
  if (form == Form::lengths && p.mask == Mask::causal && default_form(p, s) == Form::packed) {
    return "the lengths form cannot leave out the first rows of a sample that has more queries "
           "than keys; cudnn:packed can";
  }
  if (form == Form::lengths && p.mask == Mask::causal && s.max_q > s.max_kv) {
    return "the lengths form does not serve bottom-right causal with more queries than keys; "
           "cudnn:dense does";
  }
  if (form == Form::lengths && shares_samples(s)) {
    return "the lengths form does not serve keys that all samples share (stride 0); cudnn:packed "
           "does";
  }
  if (const char* what = repeated_rows(p, s, form)) {
    return fmt::format("{} with a stride of 0, which cuDNN's tensor maps do not have", what);
  }
  if (form == Form::packed && arch < 90 && version < kRaggedBelowSm90) {
    return fmt::format("cuDNN {} takes token offsets on sm90 and newer; {} takes them on sm{}",
                       version_text(version), version_text(kRaggedBelowSm90), arch);
  }
  if (s.batch > kMaxBatch) {
    return fmt::format("{} samples, cuDNN's grids hold {}", s.batch, kMaxBatch);
  }
  if (!s.padding_is_finite && loads_padding(s, form)) {
    return fmt::format(
        "cuDNN {} multiplies what lies past a sample's keys by zero, so an Inf or NaN there would "
        "reach the output; set padding_is_finite if there is none",
        version_text(version));
  }
  return std::nullopt;
}

std::int64_t bucket(std::int64_t length) noexcept {
  constexpr std::int64_t kSmallest = 128;
  if (length <= kSmallest) return kSmallest;
  // Quarters of an octave: 160, 192, 224, 256, 320, ... but tiles are 128 rows, so not below that.
  const int octave = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(length - 1))) - 1;
  const std::int64_t step = std::max<std::int64_t>(kSmallest, (std::int64_t{1} << octave) / 4);
  return (length + step - 1) / step * step;
}

Shape plan_key(const Problem& p, const Shape& s, std::string_view forced) {
  if (is_trivial(s)) return Shape{};
  const Form form = form_of(p, s, forced);
  Shape key = s;
  // Lengths and offsets are read on the device, from wherever they come.
  for (Source* source : {&key.q_lengths, &key.kv_lengths}) {
    if (*source != Source::none) *source = Source::device;
  }
  key.tokens_q = key.tokens_kv = 0;
  key.padding_is_finite = true;
  if (!key.lse) key.lse_layout = {};
  if (form == Form::packed) {
    // BSHD tensors in this form are packed ones, with offsets of our own.
    key.packed = true;
    key.q_lengths = key.kv_lengths = Source::none;
    key.offsets_q = key.offsets_kv = Source::device;
    // One row or a thousand: a plan for a single query is another, slower kernel with faults of its
    // own (see docs/backends/cudnn.md), and is never needed here.
    key.max_q = bucket(s.max_q);
    key.max_kv = bucket(s.max_kv);
    for (Layout* layout : {&key.q, &key.k, &key.v, &key.out, &key.lse_layout}) layout->batch = 0;
  }
  return key;
}

GraphKey graph_key(const Problem& p, const Shape& key, Form form) {
  GraphKey g;
  g.dtype = p.dtype;
  g.num_heads = p.num_heads;
  // Heads that share one are one: the same answer, and a stride that tensor maps have.
  g.num_k_heads = key.k.head == 0 ? 1 : p.num_kv_heads;
  g.num_v_heads = key.v.head == 0 ? 1 : p.num_kv_heads;
  g.head_dim = p.head_dim;
  g.head_dim_v = p.head_dim_v;
  g.batch = key.batch;
  g.rows_q = key.max_q;
  g.rows_kv = key.max_kv;
  g.form = form;
  g.lse = key.lse;
  g.q = key.q;
  g.k = key.k;
  g.v = key.v;
  g.out = key.out;
  g.lse_layout = key.lse_layout;
  if (g.k.head == 0) g.k.head = p.head_dim;
  if (g.v.head == 0) g.v.head = p.head_dim_v;
  if (p.mask == Mask::causal) g.diagonal = Diagonal::bottom_right;
  if (p.mask == Mask::causal_top_left) g.diagonal = Diagonal::top_left;

  const Sharing sharing = form == Form::dense ? sharing_of(p, key) : Sharing::none;
  if (sharing != Sharing::none) {
    if (sharing == Sharing::merged) g.rows_q *= g.batch;
    g.batch = 1;
    for (auto [layout, rows] :
         {std::pair{&g.q, g.rows_q}, std::pair{&g.k, g.rows_kv}, std::pair{&g.v, g.rows_kv},
          std::pair{&g.out, g.rows_q}, std::pair{&g.lse_layout, g.rows_q}}) {
      layout->batch = rows * layout->row;
    }
  }
  if (form == Form::dense) {
    if (p.mask == Mask::causal) g.rows_q -= dense_head_rows(p.mask, key);
    // Keys past the last query are never seen.
    if (p.mask == Mask::causal_top_left) g.rows_kv = std::min(g.rows_kv, g.rows_q);
    // On a square the two diagonals are one, and the top-left one is everybody's causal mask.
    if (g.diagonal == Diagonal::bottom_right && g.rows_q == g.rows_kv)
      g.diagonal = Diagonal::top_left;
  }
  if (form == Form::packed) {
    // Where a sample begins comes from the offsets; these describe the longest sample on its own.
    for (auto [layout, rows] :
         {std::pair{&g.q, g.rows_q}, std::pair{&g.k, g.rows_kv}, std::pair{&g.v, g.rows_kv},
          std::pair{&g.out, g.rows_q}, std::pair{&g.lse_layout, g.rows_q}}) {
      layout->batch = rows * layout->row;
    }
  }
  // A single query sees all of the keys that are left, under either diagonal. cuDNN's kernels for
  // one query are wrong under a mask when query heads share keys (9.18.1's release notes).
  if (form != Form::packed && g.rows_q == 1) g.diagonal = Diagonal::none;
  return g;
}

std::string GraphKey::text() const {
  const auto strides = [](const Layout& l) {
    return fmt::format("{},{},{}", l.batch, l.row, l.head);
  };
  return fmt::format(
      "{} heads={}/{}/{} dim={}/{} batch={} rows={}/{} form={} diagonal={} lse={} q={} k={} v={} "
      "out={} "
      "lse_strides={}",
      batten::name_of(dtype), num_heads, num_k_heads, num_v_heads, head_dim, head_dim_v, batch,
      rows_q, rows_kv, name_of(form), static_cast<int>(diagonal), lse ? 1 : 0, strides(q),
      strides(k), strides(v), strides(out), strides(lse_layout));
}

}  // namespace batten::impl::cudnn
