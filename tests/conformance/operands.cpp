#include "operands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "half.hpp"

namespace batten::conformance {
namespace {

// NaNs with payloads of their own: an output element that still has one was never written.
std::uint32_t poison_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f16:
      return 0x7e5au;
    case DType::bf16:
      return 0x7fdau;
    default:
      return 0x7fdadadau;
  }
}

// Moves the tensor by 16 bytes of 16-bit elements off any larger alignment.
constexpr std::int64_t kOddFront = kCanary + 8;
// Unused elements of Strides::padded, multiples of 16 bytes.
constexpr std::int64_t kHeadPad = 8;
constexpr std::int64_t kRowPad = 24;
constexpr std::int64_t kSamplePadRows = 3;

enum class Role { q, k, v, out };

// A tensor of `heads` heads in the case's form; `batch` is 1 and `rows` all rows when packed.
TensorLayout layout_of(Strides kind, Role role, bool packed, std::int64_t batch, std::int64_t rows,
                       std::int64_t heads, const Problem& problem) {
  const std::int64_t dim = problem.head_dim;
  std::int64_t head = dim;
  std::int64_t row = heads * dim;
  std::int64_t sample = rows * row;
  std::int64_t front = kCanary;
  switch (kind) {
    case Strides::contiguous:
      break;
    case Strides::heads_first:
      row = dim;
      head = rows * dim;
      break;
    case Strides::sequence_first:
      row = batch * heads * dim;
      sample = heads * dim;
      break;
    case Strides::fused: {
      if (role == Role::out) break;
      const std::int64_t kv_heads = kv_heads_of(problem);
      row = (problem.num_heads + 2 * kv_heads) * dim;
      sample = rows * row;
      if (role == Role::k) front += problem.num_heads * dim;
      if (role == Role::v) front += (problem.num_heads + kv_heads) * dim;
      break;
    }
    case Strides::padded:
      head = dim + kHeadPad;
      row = heads * head + kRowPad;
      sample = (rows + kSamplePadRows) * row;
      front = kOddFront;
      break;
    case Strides::shared_batch:
      if (role == Role::k || role == Role::v) sample = 0;
      break;
    case Strides::shared_heads:
      if (role != Role::k && role != Role::v) break;
      head = 0;
      row = dim;
      sample = rows * dim;
      break;
  }
  if (packed) return strided_layout({rows, heads, dim}, {row, head, 1}, front);
  return strided_layout({batch, rows, heads, dim}, {sample, row, head, 1}, front);
}

TensorLayout lse_layout_of(Strides kind, bool packed, std::int64_t batch, std::int64_t rows,
                           std::int64_t heads) {
  std::int64_t head = 1;
  std::int64_t row = heads;
  std::int64_t sample = rows * heads;
  if (kind == Strides::heads_first) {
    row = 1;
    head = rows;
  } else if (kind == Strides::sequence_first) {
    row = batch * heads;
    sample = heads;
  } else if (kind == Strides::padded) {
    row = heads + 3;
    sample = (rows + 1) * row;
  }
  if (packed) return strided_layout({rows, heads}, {row, head});
  return strided_layout({batch, rows, heads}, {sample, row, head});
}

// Where row `row` of all rows starts in the allocation.
std::int64_t row_position(const TensorLayout& layout, bool packed, std::int64_t row) {
  if (packed) return layout.front + row * layout.strides[0];
  return layout.front + row / layout.shape[1] * layout.strides[0] +
         row % layout.shape[1] * layout.strides[1];
}

// Calls visit(position, element index within the row) for all elements of a row, heads by heads.
template <class Visit>
void for_each_of_row(const TensorLayout& layout, bool packed, std::int64_t row, Visit&& visit) {
  const std::size_t head_axis = packed ? 1 : 2;
  const bool has_dim = layout.shape.size() > head_axis + 1;
  const std::int64_t dim = has_dim ? layout.shape[head_axis + 1] : 1;
  const std::int64_t begin = row_position(layout, packed, row);
  for (std::int64_t h = 0; h < layout.shape[head_axis]; ++h)
    for (std::int64_t d = 0; d < dim; ++d)
      visit(begin + h * layout.strides[head_axis] + d, h * dim + d);
}

void check_image(const char* what, const DeviceTensor& tensor, bool packed,
                 const std::vector<std::uint32_t>& image, const Geometry& geometry,
                 BoundsReport& report) {
  const std::uint32_t poison = poison_of(tensor.dtype());
  std::vector<bool> ours(image.size());
  for (std::size_t b = 0; b < geometry.samples.size(); ++b) {
    const Sample& sample = geometry.samples[b];
    for (std::int64_t i = 0; i < sample.q_rows; ++i)
      for_each_of_row(tensor.layout(), packed, sample.q_begin + i,
                      [&](std::int64_t position, std::int64_t element) {
                        const auto at = static_cast<std::size_t>(position);
                        ours[at] = true;
                        if (image[at] == poison)
                          report.add(Check::unwritten,
                                     fmt::format("{}: sample {}, row {}, element {} not written",
                                                 what, b, i, element));
                      });
  }
  for (std::size_t at = 0; at < image.size(); ++at)
    if (!ours[at] && image[at] != poison)
      report.add(Check::outside,
                 fmt::format("{}: element {} of the allocation ({} from the tensor's first) is "
                             "nobody's, but was written",
                             what, at, static_cast<std::int64_t>(at) - tensor.layout().front));
}

bool all_poison(const std::vector<std::uint32_t>& image, DType dtype) {
  return std::all_of(image.begin(), image.end(),
                     [&](std::uint32_t bits) { return bits == poison_of(dtype); });
}

// The tensor's elements in an image of its allocation, in row-major order.
std::vector<float> values_of(const DeviceTensor& tensor, const std::vector<std::uint32_t>& image) {
  std::vector<float> values;
  values.reserve(image.size());
  for_each_element(tensor.layout(), [&](std::int64_t at) {
    values.push_back(decode(tensor.dtype(), image[static_cast<std::size_t>(at)]));
  });
  return values;
}

// One value of an optional array.
std::vector<std::int32_t> one_of(const std::vector<std::int32_t>& values, std::size_t b) {
  if (values.empty()) return {};
  return {values[b]};
}

}  // namespace

Operands::Operands(const Case& one, const Geometry& geometry, const Inputs& inputs, Garbage garbage,
                   Device device, Strides strides, bool lse)
    : one_(one), geometry_(geometry), device_(device) {
  const Problem& p = one.problem;
  const bool packed = one.form == Form::packed;
  const std::int64_t batch = packed ? 1 : one.batch;
  const std::int64_t q_rows = packed ? geometry.q_rows : one.q;
  const std::int64_t kv_rows = packed ? geometry.kv_rows : one.kv;
  const int kv_heads = kv_heads_of(p);
  const auto make = [&](Role role, std::int64_t rows, std::int64_t heads, DType dtype) {
    return DeviceTensor(device, dtype, layout_of(strides, role, packed, batch, rows, heads, p));
  };
  q_ = make(Role::q, q_rows, p.num_heads, p.dtype);
  k_ = make(Role::k, kv_rows, kv_heads, p.dtype);
  v_ = make(Role::v, kv_rows, kv_heads, p.dtype);
  out_ = make(Role::out, q_rows, p.num_heads, p.out_dtype == DType::none ? p.dtype : p.out_dtype);
  q_.upload(inputs.q, garbage_value(garbage));
  k_.upload(inputs.k, garbage_value(garbage));
  v_.upload(inputs.v, garbage_value(garbage));
  if (!one.large) {
    q_image_ = q_.image();
    k_image_ = k_.image();
    v_image_ = v_.image();
  }
  if (lse)
    lse_.emplace(device, DType::f32, lse_layout_of(strides, packed, batch, q_rows, p.num_heads));
  call_ = {.packed = packed, .q = q_.view(), .k = k_.view(), .v = v_.view(), .out = out_.view()};
  if (lse_) call_.options.lse = lse_->view();
  call_.options.q_lengths = lengths_view(geometry_.q_lengths, one.placement);
  call_.options.kv_lengths = lengths_view(geometry_.kv_lengths, one.placement);
  if (packed) {
    call_.options.offsets_q = *lengths_view(geometry_.offsets_q, one.placement);
    call_.options.offsets_kv = *lengths_view(geometry_.offsets_kv, one.placement);
    call_.options.max_q = geometry_.max_q;
    call_.options.max_kv = geometry_.max_kv;
  }
  call_.options.scale = one.call_scale;
  call_.options.padding_is_finite = garbage == Garbage::finite;
  poison();
}

std::optional<TensorView> Operands::lengths_view(const std::vector<std::int32_t>& values,
                                                 Placement placement) {
  if (values.empty()) return {};
  if (placement == Placement::host || device_.is_cpu()) return TensorView(values);
  arrays_.emplace_back(device_, DType::i32,
                       contiguous_layout({static_cast<std::int64_t>(values.size())}));
  arrays_.back().upload(values);
  return arrays_.back().view();
}

Call Operands::call_of(std::size_t b, const DeviceTensor& out, const DeviceTensor* lse) const {
  const Sample& sample = geometry_.samples[b];
  const auto keep = [&](std::vector<std::int32_t> values) -> std::optional<TensorView> {
    if (values.empty()) return {};
    partial_arrays_.push_back(std::move(values));
    return TensorView(partial_arrays_.back());
  };
  Call call{.packed = call_.packed, .out = out.view(), .options = {.scale = one_.call_scale}};
  if (lse) call.options.lse = lse->view();
  call.options.padding_is_finite = call_.options.padding_is_finite;
  if (call.packed) {
    call.q = q_.rows(sample.q_begin, sample.q_length);
    call.k = k_.rows(sample.kv_begin, sample.kv_length);
    call.v = v_.rows(sample.kv_begin, sample.kv_length);
    call.options.offsets_q = *keep({0, static_cast<std::int32_t>(sample.q_length)});
    call.options.offsets_kv = *keep({0, static_cast<std::int32_t>(sample.kv_length)});
    return call;
  }
  const auto row = static_cast<std::int64_t>(b);
  call.q = q_.rows(row, 1);
  call.k = k_.rows(row, 1);
  call.v = v_.rows(row, 1);
  call.options.q_lengths = keep(one_of(geometry_.q_lengths, b));
  call.options.kv_lengths = keep(one_of(geometry_.kv_lengths, b));
  return call;
}

Call Operands::call_of_keys(std::int64_t first, std::int64_t last, const DeviceTensor& out,
                            const DeviceTensor& lse) const {
  Call call = call_;
  call.out = out.view();
  call.options.lse = lse.view();
  const auto part = [&](const TensorView& whole) {
    const std::array<std::int64_t, 4> shape{whole.shape(0), last - first, whole.shape(2),
                                            whole.shape(3)};
    const std::array<std::int64_t, 4> strides{whole.stride(0), whole.stride(1), whole.stride(2), 1};
    const auto skipped = static_cast<std::size_t>(first * whole.stride(1)) * size_of(whole.dtype());
    return TensorView(static_cast<const std::byte*>(whole.data()) + skipped, whole.dtype(), shape,
                      strides, device_);
  };
  call.k = part(call_.k);
  call.v = part(call_.v);
  if (!geometry_.kv_lengths.empty()) {
    std::vector<std::int32_t> lengths = geometry_.kv_lengths;
    for (std::int32_t& length : lengths)
      length = static_cast<std::int32_t>(std::clamp<std::int64_t>(length - first, 0, last - first));
    partial_arrays_.push_back(std::move(lengths));
    call.options.kv_lengths = TensorView(partial_arrays_.back());
  }
  return call;
}

void Operands::poison() {
  out_.fill_bits(poison_of(out_.dtype()));
  if (lse_) lse_->fill_bits(poison_of(DType::f32));
}

void Operands::fetch() {
  out_image_ = out_.image();
  if (lse_) lse_image_ = lse_->image();
}

std::vector<float> Operands::out() const { return values_of(out_, out_image_); }

std::vector<float> Operands::lse() const {
  return lse_ ? values_of(*lse_, lse_image_) : std::vector<float>{};
}

void Operands::check_written(BoundsReport& report) const {
  check_image("out", out_, call_.packed, out_image_, geometry_, report);
  if (lse_) check_image("lse", *lse_, call_.packed, lse_image_, geometry_, report);
}

bool Operands::untouched() const {
  return all_poison(out_image_, out_.dtype()) && all_poison(lse_image_, DType::f32);
}

void Operands::check_inputs(BoundsReport& report) const {
  if (one_.large) return;
  if (q_.image() != q_image_) report.add(Check::outside, "q was changed");
  if (k_.image() != k_image_) report.add(Check::outside, "k was changed");
  if (v_.image() != v_image_) report.add(Check::outside, "v was changed");
}

}  // namespace batten::conformance
