#include "plain_subject.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "cases.hpp"
#include "half.hpp"

namespace batten::conformance {
namespace {

constexpr std::uint64_t kScratchBytes = 64;
constexpr std::size_t kTile = 64;

float load(DType dtype, const std::byte* at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, size_of(dtype));
  return decode(dtype, bits);
}

void store(DType dtype, std::byte* at, float value) {
  const std::uint32_t bits = encode(dtype, value);
  std::memcpy(at, &bits, size_of(dtype));
}

std::byte* element(const TensorView& view, std::int64_t index) {
  return static_cast<std::byte*>(view.data()) +
         index * static_cast<std::int64_t>(size_of(view.dtype()));
}

std::int32_t host_value(const TensorView& view, std::int64_t index) {
  return static_cast<const std::int32_t*>(view.data())[index];
}

// The element index of (sample, row, head) in a view of either form.
std::int64_t index_of(const TensorView& view, bool packed, std::int64_t first_token, std::int64_t b,
                      std::int64_t row, std::int64_t head) {
  if (packed) return (first_token + row) * view.stride(0) + head * view.stride(1);
  return b * view.stride(0) + row * view.stride(1) + head * view.stride(2);
}

void load_row(const TensorView& view, std::int64_t index, int count, std::vector<float>& row) {
  const std::byte* at = element(view, index);
  for (int d = 0; d < count; ++d, at += size_of(view.dtype()))
    row.push_back(load(view.dtype(), at));
}

TensorView with_strides_of(const TensorView& view, const TensorView& other) {
  std::vector<std::int64_t> shape, strides;
  for (int axis = 0; axis < view.ndim(); ++axis) {
    shape.push_back(view.shape(axis));
    strides.push_back(other.stride(axis));
  }
  return {view.data(), view.dtype(), shape, strides};
}

}  // namespace

struct PlainSubject::Head {
  int index = 0;
  int in_group = 0;
  std::vector<float> keys, values;  // [rows up to the next sample, D]
};

struct PlainSubject::Rows {
  std::int64_t b = 0;
  std::int64_t batch = 0;
  std::int64_t q_token = 0, kv_token = 0;  // packed: the sample's first
  std::int64_t q_length = 0, kv_length = 0;
  std::int64_t q_room = 0, kv_room = 0;  // rows up to the next sample
};

const char* name_of(Fault fault) noexcept {
  switch (fault) {
    case Fault::none:
      return "none";
    case Fault::tile_skipped:
      return "tile_skipped";
    case Fault::tile_skipped_once:
      return "tile_skipped_once";
    case Fault::last_key_dropped:
      return "last_key_dropped";
    case Fault::rows_swapped:
      return "rows_swapped";
    case Fault::causal_late:
      return "causal_late";
    case Fault::causal_early:
      return "causal_early";
    case Fault::causal_other_rule:
      return "causal_other_rule";
    case Fault::kv_length_ignored:
      return "kv_length_ignored";
    case Fault::q_length_ignored:
      return "q_length_ignored";
    case Fault::neighbours_length:
      return "neighbours_length";
    case Fault::wrong_group:
      return "wrong_group";
    case Fault::lse_base_2:
      return "lse_base_2";
    case Fault::lse_of_first_head:
      return "lse_of_first_head";
    case Fault::lse_without_scale:
      return "lse_without_scale";
    case Fault::row_unwritten:
      return "row_unwritten";
    case Fault::padding_leaked:
      return "padding_leaked";
    case Fault::past_end_written:
      return "past_end_written";
    case Fault::scale_ignored:
      return "scale_ignored";
    case Fault::scale_of_first_call:
      return "scale_of_first_call";
    case Fault::strides_of_first_call:
      return "strides_of_first_call";
    case Fault::lengths_of_first_call:
      return "lengths_of_first_call";
    case Fault::maximum_not_taken:
      return "maximum_not_taken";
    case Fault::no_key_is_nan:
      return "no_key_is_nan";
    case Fault::nan_swallowed:
      return "nan_swallowed";
    case Fault::low_precision:
      return "low_precision";
    case Fault::moody:
      return "moody";
    case Fault::sociable:
      return "sociable";
    case Fault::scratch_overrun:
      return "scratch_overrun";
    case Fault::input_changed:
      return "input_changed";
    case Fault::plan_forgotten:
      return "plan_forgotten";
    case Fault::refuses_ragged:
      return "refuses_ragged";
    case Fault::lies_about_backend:
      return "lies_about_backend";
  }
  return "unknown";
}

void PlainSubject::construct(const Problem& problem) {
  problem_ = problem;
  first_scale_.reset();
  first_call_.reset();
  first_kv_length_ = -1;
}

std::uint64_t PlainSubject::prepare(const Call&) { return kScratchBytes; }

PlainSubject::Rows PlainSubject::rows_of(const Call& call, std::int64_t b) const {
  const PackedOptions& o = call.options;
  Rows rows{.b = b};
  if (call.packed) {
    rows.batch = o.offsets_q.shape(0) - 1;
    rows.q_token = host_value(o.offsets_q, b);
    rows.kv_token = host_value(o.offsets_kv, b);
    rows.q_room = host_value(o.offsets_q, b + 1) - rows.q_token;
    rows.kv_room = host_value(o.offsets_kv, b + 1) - rows.kv_token;
  } else {
    rows.batch = call.q.shape(0);
    rows.q_room = call.q.shape(1);
    rows.kv_room = call.k.shape(1);
  }
  const std::int64_t from =
      has(Fault::neighbours_length) && b + 1 < rows.batch && rows.batch > 1 ? b + 1 : b;
  rows.q_length = o.q_lengths ? host_value(*o.q_lengths, b) : rows.q_room;
  rows.kv_length = o.kv_lengths ? host_value(*o.kv_lengths, from) : rows.kv_room;
  if (has(Fault::kv_length_ignored) && b == rows.batch - 1) rows.kv_length = rows.kv_room;
  if (has(Fault::q_length_ignored)) rows.q_length = rows.q_room;
  return rows;
}

std::int64_t PlainSubject::keys_seen(const Rows& rows, std::int64_t i) const {
  Mask mask = problem_.mask;
  if (has(Fault::causal_other_rule) && mask != Mask::none)
    mask = mask == Mask::causal ? Mask::causal_top_left : Mask::causal;
  std::int64_t seen = rows.kv_length;
  if (mask == Mask::causal) seen = i + 1 + rows.kv_length - rows.q_length;
  if (mask == Mask::causal_top_left) seen = i + 1;
  if (has(Fault::causal_late) && mask != Mask::none) ++seen;
  if (has(Fault::causal_early) && mask != Mask::none) --seen;
  if (has(Fault::last_key_dropped) && rows.kv_length % static_cast<std::int64_t>(kTile) == 1 &&
      seen == rows.kv_length)
    --seen;
  return std::clamp<std::int64_t>(seen, 0, rows.kv_length);
}

bool PlainSubject::skips(const Rows& rows, std::int64_t i, int head, std::int64_t key) const {
  if (static_cast<std::size_t>(key) / kTile != 1) return false;
  if (has(Fault::tile_skipped)) return i % 7 == 3;
  if (has(Fault::tile_skipped_once))
    return rows.b == rows.batch - 1 && i == rows.q_length / 2 && head == problem_.num_heads - 1;
  return false;
}

double PlainSubject::scale_of_call(const Call& call) const {
  const double usual = 1 / std::sqrt(static_cast<double>(problem_.head_dim));
  if (has(Fault::scale_ignored)) return usual;
  if (has(Fault::scale_of_first_call) && first_scale_) return *first_scale_;
  return call.options.scale.value_or(problem_.scale.value_or(usual));
}

PlainSubject::Head PlainSubject::head_of(const Call& call, const Rows& rows, int index) const {
  const int kv_heads = kv_heads_of(problem_);
  const int group = problem_.num_heads / kv_heads;
  const int kv_head = has(Fault::wrong_group) ? index % kv_heads : index / group;
  Head head{.index = index, .in_group = index % group, .keys = {}, .values = {}};
  for (std::int64_t j = 0; j < rows.kv_room; ++j) {
    load_row(call.k, index_of(call.k, call.packed, rows.kv_token, rows.b, j, kv_head),
             problem_.head_dim, head.keys);
    load_row(call.v, index_of(call.v, call.packed, rows.kv_token, rows.b, j, kv_head),
             problem_.head_dim, head.values);
  }
  return head;
}

std::vector<double> PlainSubject::weights_of(const Call& call, const Rows& rows, const Head& head,
                                             std::int64_t i, double scale, double& maximum) const {
  const auto dim = static_cast<std::size_t>(problem_.head_dim);
  std::int64_t q_row = i;
  if (has(Fault::rows_swapped) && head.index == 0 && rows.b == 0 && rows.q_length > 3 &&
      (i == 2 || i == 3))
    q_row = 5 - i;
  const TensorView q =
      has(Fault::strides_of_first_call) ? with_strides_of(call.q, first_call_->q) : call.q;
  std::vector<float> query;
  load_row(q, index_of(q, call.packed, rows.q_token, rows.b, q_row, head.index), problem_.head_dim,
           query);

  std::vector<double> weights(static_cast<std::size_t>(keys_seen(rows, i)));
  maximum = -INFINITY;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    double dot = 0;
    for (std::size_t d = 0; d < dim; ++d)
      dot += static_cast<double>(query[d]) * static_cast<double>(head.keys[j * dim + d]);
    double logit = dot * scale;
    if (skips(rows, i, head.index, static_cast<std::int64_t>(j)) ||
        (has(Fault::nan_swallowed) && std::isnan(logit)))
      logit = -INFINITY;
    weights[j] = logit;
    maximum = std::max(maximum, logit);
  }
  if (has(Fault::maximum_not_taken)) maximum = 0;
  for (double& weight : weights) {
    weight = std::exp(weight - maximum);
    if (has(Fault::maximum_not_taken)) weight = static_cast<float>(weight);
    if (has(Fault::low_precision)) weight = std::ldexp(std::round(std::ldexp(weight, 5)), -5);
  }
  return weights;
}

void PlainSubject::attend(const Call& call, const Rows& rows, const Head& head, std::int64_t i) {
  const auto dim = static_cast<std::size_t>(problem_.head_dim);
  const double scale = scale_of_call(call);
  double maximum = 0;
  std::vector<double> weights = weights_of(call, rows, head, i, scale, maximum);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const bool empty = weights.empty() && !has(Fault::no_key_is_nan);
  if (has(Fault::padding_leaked)) {
    const std::size_t tiles = (weights.size() + kTile - 1) / kTile;
    weights.resize(std::min(tiles * kTile, static_cast<std::size_t>(rows.kv_room)));
  }
  std::vector<double> totals(dim);
  for (std::size_t j = 0; j < weights.size(); ++j)
    for (std::size_t d = 0; d < dim; ++d)
      totals[d] += weights[j] * static_cast<double>(head.values[j * dim + d]);
  const std::int64_t out_at = index_of(call.out, call.packed, rows.q_token, rows.b, i, head.index);
  for (std::size_t d = 0; d < dim; ++d)
    store(call.out.dtype(), element(call.out, out_at + static_cast<std::int64_t>(d)),
          empty ? 0.f : static_cast<float>(totals[d] / sum));
  const bool flip =
      (has(Fault::moody) && forwards_ % 2 == 1) || (has(Fault::sociable) && rows.batch > 1);
  if (flip && i == 0 && head.index == 0) *element(call.out, out_at) ^= std::byte{1};

  if (!call.options.lse || (has(Fault::lse_of_first_head) && head.in_group != 0)) return;
  const TensorView& lse = *call.options.lse;
  double value = empty ? -INFINITY : maximum + std::log(sum);
  if (has(Fault::lse_base_2)) value /= std::log(2.0);
  if (has(Fault::lse_without_scale)) value /= scale;
  store(DType::f32, element(lse, index_of(lse, call.packed, rows.q_token, rows.b, i, head.index)),
        static_cast<float>(value));
}

Receipt PlainSubject::forward(const Call& call) {
  batten_receipt raw{};
  raw.struct_size = sizeof(raw);
  std::strcpy(raw.backend, has(Fault::lies_about_backend) ? "cpu" : "reference");
  std::strcpy(raw.kernel, "plain loops");
  raw.plan_reused = has(Fault::plan_forgotten) ? 0 : 1;
  const Receipt receipt(raw);
  const PackedOptions& o = call.options;
  if (has(Fault::refuses_ragged) && (call.packed || o.q_lengths || o.kv_lengths))
    throw Error(ErrorCode::Unsupported, "ragged batches are not served");
  if (!first_call_) {
    first_call_ = call;
    first_scale_ = scale_of_call(call);
  }
  if (has(Fault::input_changed) && call.q.shape(0) > 0 && call.q.shape(1) > 0)
    store(call.q.dtype(), element(call.q, 0), 3.25f);
  if (has(Fault::scratch_overrun) && o.workspace)
    static_cast<std::byte*>(o.workspace)[o.workspace_size] = std::byte{0};

  const std::int64_t batch = call.packed ? o.offsets_q.shape(0) - 1 : call.q.shape(0);
  for (std::int64_t b = 0; b < batch; ++b) {
    Rows rows = rows_of(call, b);
    if (has(Fault::lengths_of_first_call) && b == 0) {
      if (first_kv_length_ < 0) first_kv_length_ = static_cast<std::int32_t>(rows.kv_length);
      rows.kv_length = std::min<std::int64_t>(first_kv_length_, rows.kv_room);
    }
    std::int64_t last = rows.q_length;
    if (has(Fault::row_unwritten) && b == batch - 1) --last;
    if (has(Fault::past_end_written) && rows.q_room > rows.q_length && call.packed) ++last;
    // Dense rows past the length: no key is theirs.
    Rows none = rows;
    none.kv_length = 0;
    const bool clears = !call.packed && !has(Fault::no_key_is_nan);
    for (int index = 0; index < problem_.num_heads; ++index) {
      const Head head = head_of(call, rows, index);
      for (std::int64_t i = 0; i < last; ++i) attend(call, rows, head, i);
      for (std::int64_t i = rows.q_length; clears && i < rows.q_room; ++i)
        attend(call, none, head, i);
    }
  }
  ++forwards_;
  return receipt;
}

}  // namespace batten::conformance
