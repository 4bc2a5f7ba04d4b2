#include "wan/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/error.hpp"
#include "core/half.hpp"

namespace batten::wan {
namespace {

std::size_t bytes_of(std::int64_t count, DType dtype) {
  return static_cast<std::size_t>(count) * size_of(dtype);
}

// The least number of elements from `count` on after which the next tensor may begin.
std::int64_t aligned(std::int64_t count, DType dtype) {
  const auto step = static_cast<std::int64_t>(kAlignment / size_of(dtype));
  return (count + step - 1) / step * step;
}

// Values of the model's dtype as float, and back.
void from_floats(std::span<const float> values, std::size_t first, DType dtype,
                 std::span<std::byte> out) {
  const std::size_t size = size_of(dtype);
  for (std::size_t i = 0; i < out.size() / size; ++i) {
    const float value = values[first + i];
    if (dtype == DType::f32) {
      std::memcpy(out.data() + i * size, &value, size);
    } else {
      const std::uint16_t bits =
          dtype == DType::bf16 ? impl::float_to_bfloat16(value) : impl::float_to_half(value);
      std::memcpy(out.data() + i * size, &bits, size);
    }
  }
}

std::vector<float> to_floats(std::span<const std::byte> bytes, DType dtype) {
  const std::size_t size = size_of(dtype);
  std::vector<float> values(bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f32) {
      std::memcpy(&values[i], bytes.data() + i * size, size);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * size, size);
      values[i] = dtype == DType::bf16 ? impl::bfloat16_to_float(bits) : impl::half_to_float(bits);
    }
  }
  return values;
}

// cos, then sin, of t times the frequencies, in float32 as diffusers computes them: at t near 1000
// exact phases would differ by 5e-5.
void sinusoid(float t, std::int64_t dim, float* out) {
  const std::int64_t half = dim / 2;
  const auto log_period = static_cast<float>(-std::log(10000.0));
  for (std::int64_t i = 0; i < half; ++i) {
    const float frequency = std::exp(log_period * static_cast<float>(i) / static_cast<float>(half));
    out[i] = std::cos(t * frequency);
    out[half + i] = std::sin(t * frequency);
  }
}

// Dimensions of a head that turn with the frame, the row and the column.
std::array<std::int64_t, 3> rope_dims(std::int64_t head_dim) {
  const std::int64_t side = 2 * (head_dim / 6);
  return {head_dim - 2 * side, side, side};
}

const Shape& checked(const Config& config, const Shape& shape) {
  wan::check(config, shape);
  return shape;
}

Problem problem_of(const Config& config, DType dtype) {
  return {.dtype = dtype,
          .num_heads = static_cast<int>(config.heads),
          .head_dim = static_cast<int>(config.head_dim)};
}

}  // namespace

Session::Buffers Session::plan(const Config& c, const Shape& s, DType dtype, int passes) {
  Buffers b{};
  const auto take = [&](std::int64_t count, DType type) {
    const std::size_t offset = b.bytes;
    b.bytes += (bytes_of(count, type) + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  };
  const std::int64_t d = c.dim();
  const std::int64_t rows = s.batch * wan::tokens(c, s);
  const std::int64_t text = s.batch * s.text_tokens;
  const std::int64_t image = s.batch * s.image_tokens;
  const std::int64_t widest = std::max({3 * d, c.ffn_dim, c.patch_in(), c.patch_out()});
  b.x = take(rows * d, dtype);
  b.normed = take(rows * d, dtype);
  // Before the steps, the embedders work here.
  const std::int64_t embedders = std::max(aligned(text * c.text_dim, dtype) + text * d,
                                          2 * aligned(image * c.image_dim, dtype) + image * d);
  b.work = take(std::max(rows * widest, embedders), dtype);
  b.input = take(s.batch * c.in_channels * s.pixels(), DType::f32);
  b.rope = take(wan::tokens(c, s) * c.head_dim, DType::f32);
  b.index = take(rows, DType::i32);
  b.sinusoid = take(s.timesteps * c.freq_dim, DType::f32);
  b.time1 = take(s.timesteps * d, DType::f32);
  b.time2 = take(s.timesteps * d, DType::f32);
  b.temb = take(s.timesteps * d, dtype);
  b.silu = take(s.timesteps * d, dtype);
  b.time_proj = take(s.timesteps * 6 * d, dtype);
  b.context_image = take(image * d, dtype);
  b.kv = take(std::max(text, image) * 2 * d, dtype);
  for (int pass = 0; pass < passes; ++pass) {
    b.context.push_back(take(text * d, dtype));
    b.output.push_back(take(s.batch * c.out_channels * s.pixels(), DType::f32));
  }
  return b;
}

std::size_t session_bytes(const Config& config, const Shape& shape, DType dtype, int passes) {
  return Session::plan(config, shape, dtype, passes).bytes;
}

Session::Session(Ops& ops, const Weights& weights, const Shape& shape,
                 const SessionOptions& options)
    : ops_(ops),
      weights_(weights),
      config_(weights.config()),
      layout_(weights.layout()),
      shape_(checked(weights.config(), shape)),
      passes_(options.passes),
      dtype_(layout_.dtype),
      tokens_(wan::tokens(config_, shape)),
      rows_(shape.batch * tokens_),
      attention_(problem_of(config_, dtype_), ops.device(),
                 {.backend = options.backend, .num_threads = options.num_threads}),
      buffers_(plan(config_, shape, dtype_, options.passes)),
      memory_(ops.allocate(buffers_.bytes)) {
  const auto floats = [](std::int64_t count) { return bytes_of(count, DType::f32); };
  host_input_ = ops.allocate_host(floats(shape.batch * config_.in_channels * shape.pixels()));
  host_output_ =
      ops.allocate_host(floats(passes_ * shape.batch * config_.out_channels * shape.pixels()));
  host_index_ = ops.allocate_host(bytes_of(rows_, DType::i32));
  host_sinusoid_ = ops.allocate_host(floats(shape.timesteps * config_.freq_dim));
  std::memset(host_input_.data, 0, host_input_.bytes);
  make_rope();
  prepare();
}

std::byte* Session::work(std::int64_t column) const noexcept {
  return at(buffers_.work) + bytes_of(column, dtype_);
}

void Session::make_rope() {
  const auto [frames, height, width] = grid(config_, shape_);
  const std::array<std::int64_t, 3> dims = rope_dims(config_.head_dim);
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(tokens_ * config_.head_dim));
  const auto turn = [&](std::int64_t position, std::int64_t dim) {
    for (std::int64_t j = 0; j < dim / 2; ++j) {
      const double angle =
          static_cast<double>(position) *
          std::pow(10000.0, -2.0 * static_cast<double>(j) / static_cast<double>(dim));
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  };
  for (std::int64_t f = 0; f < frames; ++f) {
    for (std::int64_t h = 0; h < height; ++h) {
      for (std::int64_t w = 0; w < width; ++w) {
        turn(f, dims[0]);
        turn(h, dims[1]);
        turn(w, dims[2]);
      }
    }
  }
  ops_.upload(at(buffers_.rope), table.size() * sizeof(float),
              [&](std::span<std::byte> piece, std::size_t offset) {
                from_floats(table, offset / sizeof(float), DType::f32, piece);
              });
}

// Everything that may not happen while a step is recorded.
void Session::prepare() {
  const std::int64_t d = config_.dim();
  const CallOptions call{.stream = ops_.stream()};
  const TensorView q = heads(nullptr, tokens_, 3 * d);
  const TensorView cross_q = heads(nullptr, tokens_, d);
  attention_bytes_ = attention_.prepare(q, q, q, cross_q, call);
  const TensorView text = heads(nullptr, shape_.text_tokens, 2 * d);
  attention_bytes_ = std::max<std::size_t>(attention_bytes_,
                                           attention_.prepare(cross_q, text, text, cross_q, call));
  if (config_.takes_image()) {
    const TensorView image = heads(nullptr, shape_.image_tokens, 2 * d);
    attention_bytes_ = std::max<std::size_t>(
        attention_bytes_, attention_.prepare(cross_q, image, image, cross_q, call));
  }
  const auto linears = [&](const Linear& layer, std::int64_t rows,
                           Activation activation = Activation::none) {
    ops_.prepare(call_of(layer, at(buffers_.x), rows, work(0), activation));
  };
  const std::int64_t text_rows = shape_.batch * shape_.text_tokens;
  const BlockLayout& block = layout_.blocks.front();
  linears(layout_.patch, rows_);
  linears(layout_.time_proj, shape_.timesteps);
  linears(layout_.text1, text_rows, Activation::gelu_tanh);
  linears(layout_.text2, text_rows);
  linears(block.qkv, rows_);
  linears(block.self_out, rows_);
  linears(block.cross_q, rows_);
  linears(block.cross_kv, text_rows);
  linears(block.ffn_up, rows_, Activation::gelu_tanh);
  linears(block.ffn_down, rows_);
  linears(layout_.proj_out, rows_);
  if (config_.takes_image()) {
    const std::int64_t image_rows = shape_.batch * shape_.image_tokens;
    linears(layout_.image1, image_rows, Activation::gelu_erf);
    linears(layout_.image2, image_rows);
    linears(block.image_kv, image_rows);
  }
}

LinearCall Session::call_of(const Linear& layer, const void* x, std::int64_t rows, void* out,
                            Activation activation) const {
  return {.x = x,
          .weight = weights_.at(layer.weight),
          .bias = weights_.at(layer.bias),
          .out = out,
          .rows = rows,
          .n_in = layer.in,
          .n_out = layer.out,
          .dtype = layer.dtype,
          .activation = activation};
}

void Session::linear(const Linear& layer, const void* x, std::int64_t rows, void* out,
                     Activation activation) {
  ops_.mark(Work::linear);
  ops_.linear(call_of(layer, x, rows, out, activation));
  ops_.mark(Work::other);
}

void Session::layer_norm(const Norm& norm, void* x, void* out, std::int64_t rows, std::int64_t d) {
  ops_.norm({.x = x,
             .out = out,
             .rows = rows,
             .d = d,
             .dtype = dtype_,
             .eps = 1e-5,
             .scale = {.table = weights_.floats(norm.weight)},
             .shift = {.table = weights_.floats(norm.bias)},
             .unit = 0});
}

void Session::set_text(int pass, std::span<const float> text) {
  const std::int64_t rows = shape_.batch * shape_.text_tokens;
  if (static_cast<std::int64_t>(text.size()) != rows * config_.text_dim)
    fail(ErrorCode::InvalidArgument, "the text has {} values, expected {}", text.size(),
         rows * config_.text_dim);
  ops_.upload(work(0), text.size() * size_of(dtype_),
              [&](std::span<std::byte> piece, std::size_t offset) {
                from_floats(text, offset / size_of(dtype_), dtype_, piece);
              });
  std::byte* const hidden = work(aligned(rows * config_.text_dim, dtype_));
  std::byte* const context = at(buffers_.context[static_cast<std::size_t>(pass)]);
  linear(layout_.text1, work(0), rows, hidden, Activation::gelu_tanh);
  linear(layout_.text2, hidden, rows, context);
  ops_.synchronize();
  if (pass == 0) tap("context", context, rows * config_.dim(), dtype_);
}

void Session::set_image(std::span<const float> image) {
  const std::int64_t rows = shape_.batch * shape_.image_tokens;
  const std::int64_t n = config_.image_dim;
  if (static_cast<std::int64_t>(image.size()) != rows * n)
    fail(ErrorCode::InvalidArgument, "the image embeddings have {} values, expected {}",
         image.size(), rows * n);
  std::vector<float> values(image.begin(), image.end());
  if (config_.image_pos_tokens > 0) {
    std::vector<float> positions(static_cast<std::size_t>(shape_.image_tokens * n));
    ops_.copy_out(positions.data(), weights_.at(layout_.image_positions),
                  positions.size() * sizeof(float));
    ops_.synchronize();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += positions[i % positions.size()];
  }
  ops_.upload(work(0), values.size() * size_of(dtype_),
              [&](std::span<std::byte> piece, std::size_t offset) {
                from_floats(values, offset / size_of(dtype_), dtype_, piece);
              });
  std::byte* const hidden = work(aligned(rows * n, dtype_));
  std::byte* const projected = work(2 * aligned(rows * n, dtype_));
  layer_norm(layout_.image_norm1, work(0), work(0), rows, n);
  linear(layout_.image1, work(0), rows, hidden, Activation::gelu_erf);
  linear(layout_.image2, hidden, rows, projected);
  layer_norm(layout_.image_norm2, projected, at(buffers_.context_image), rows, config_.dim());
  ops_.synchronize();
  tap("context_image", at(buffers_.context_image), rows * config_.dim(), dtype_);
}

void Session::set_timesteps(std::span<const float> timesteps) {
  const auto given = static_cast<std::int64_t>(timesteps.size());
  if (given != shape_.batch && given != rows_) {
    fail(ErrorCode::InvalidArgument, "{} timesteps, expected one a sample ({}) or one a token ({})",
         given, shape_.batch, rows_);
  }
  auto* const index = reinterpret_cast<std::int32_t*>(host_index_.data);
  auto* const sines = reinterpret_cast<float*>(host_sinusoid_.data);
  std::map<float, std::int32_t> known;
  const std::int64_t each = rows_ / given;  // tokens of a timestep
  for (std::int64_t i = 0; i < given; ++i) {
    const float t = timesteps[static_cast<std::size_t>(i)];
    const auto [it, added] = known.emplace(t, static_cast<std::int32_t>(known.size()));
    if (added) {
      if (static_cast<std::int64_t>(known.size()) > shape_.timesteps) {
        fail(ErrorCode::InvalidArgument, "more than the {} different timesteps that were planned",
             shape_.timesteps);
      }
      sinusoid(t, config_.freq_dim, sines + it->second * config_.freq_dim);
    }
    std::fill_n(index + i * each, each, it->second);
  }
  timesteps_ = static_cast<std::int64_t>(known.size());
  // What a smaller number leaves over is computed and not used.
  for (std::int64_t i = timesteps_; i < shape_.timesteps; ++i)
    std::copy_n(sines, config_.freq_dim, sines + i * config_.freq_dim);
  ops_.copy_in(at(buffers_.index), host_index_.data, host_index_.bytes);
  ops_.copy_in(at(buffers_.sinusoid), host_sinusoid_.data, host_sinusoid_.bytes);
  ops_.synchronize();
}

std::span<float> Session::input() noexcept {
  return {reinterpret_cast<float*>(host_input_.data), host_input_.bytes / sizeof(float)};
}

std::span<const float> Session::output(int pass) const noexcept {
  const std::size_t count = host_output_.bytes / sizeof(float) / static_cast<std::size_t>(passes_);
  const auto* const data = reinterpret_cast<const float*>(host_output_.data);
  return {data + static_cast<std::size_t>(pass) * count, count};
}

void Session::step() {
  if (timesteps_ == 0) fail(ErrorCode::Internal, "a step before its timesteps");
  ops_.copy_in(at(buffers_.input), host_input_.data, host_input_.bytes);
  // The first step runs as it is: libraries then load what a recording could not.
  if (replay_) {
    replay_();
  } else if (++steps_ == 1 || tap_) {
    work_of_step();
  } else {
    replay_ = ops_.record([this] { work_of_step(); });
  }
  const std::size_t bytes = host_output_.bytes / static_cast<std::size_t>(passes_);
  for (int pass = 0; pass < passes_; ++pass) {
    const auto p = static_cast<std::size_t>(pass);
    ops_.copy_out(host_output_.data + p * bytes, at(buffers_.output[p]), bytes);
  }
  ops_.synchronize();
}

Ops::Times Session::timed_step() {
  ops_.copy_in(at(buffers_.input), host_input_.data, host_input_.bytes);
  ops_.synchronize();
  ops_.start_timing();
  work_of_step();
  return ops_.finish_timing();
}

void Session::tap(const std::string& name, const void* data, std::int64_t count, DType dtype) {
  if (!tap_) return;
  std::vector<std::byte> bytes(bytes_of(count, dtype));
  ops_.copy_out(bytes.data(), data, bytes.size());
  ops_.synchronize();
  tap_(name, to_floats(bytes, dtype));
}

void Session::work_of_step() {
  embed_time();
  for (int pass = 0; pass < passes_; ++pass) forward(pass);
}

void Session::embed_time() {
  const std::int64_t n = shape_.timesteps;
  const std::int64_t d = config_.dim();
  const auto count = static_cast<std::size_t>(n * d);
  linear(layout_.time1, at(buffers_.sinusoid), n, at(buffers_.time1));
  ops_.activate(at(buffers_.time1), DType::f32, at(buffers_.time1), DType::f32, count,
                Activation::silu);
  linear(layout_.time2, at(buffers_.time1), n, at(buffers_.time2));
  ops_.activate(at(buffers_.time2), DType::f32, at(buffers_.temb), dtype_, count, Activation::none);
  ops_.activate(at(buffers_.temb), dtype_, at(buffers_.silu), dtype_, count, Activation::silu);
  linear(layout_.time_proj, at(buffers_.silu), n, at(buffers_.time_proj));
  tap("temb", at(buffers_.temb), n * d, dtype_);
  tap("time_proj", at(buffers_.time_proj), 6 * n * d, dtype_);
}

// Row `row` of a block's table and of the projected timesteps.
Modulation Session::row_of(std::size_t table, std::int64_t row) const {
  const std::int64_t d = config_.dim();
  return {.table = weights_.floats(table) + row * d,
          .rows = at(buffers_.time_proj) + bytes_of(row * d, dtype_),
          .stride = 6 * d};
}

void Session::norm(const void* y, void* out, const Modulation& gate, const Modulation& scale,
                   const Modulation& shift, float unit) {
  ops_.norm({.x = at(buffers_.x),
             .y = y,
             .out = out,
             .rows = rows_,
             .d = config_.dim(),
             .dtype = dtype_,
             .eps = config_.eps,
             .gate = gate,
             .scale = scale,
             .shift = shift,
             .unit = unit,
             .index = reinterpret_cast<const std::int32_t*>(at(buffers_.index))});
}

// The norm that the block `index` begins with, or the head's after the last; first x += y * gate.
void Session::modulated_norm(std::size_t index, const void* y, const Modulation& gate) {
  const std::int64_t d = config_.dim();
  Modulation shift{.table = weights_.floats(layout_.table), .rows = at(buffers_.temb), .stride = d};
  Modulation scale = shift;
  scale.table += d;
  if (index < layout_.blocks.size()) {
    shift = row_of(layout_.blocks[index].table, 0);
    scale = row_of(layout_.blocks[index].table, 1);
  }
  norm(y, at(buffers_.normed), gate, scale, shift, 1);
}

void Session::forward(int pass) {
  const auto p = static_cast<std::size_t>(pass);
  PatchCall patches{.latents = reinterpret_cast<float*>(at(buffers_.input)),
                    .rows = work(0),
                    .dtype = dtype_,
                    .batch = shape_.batch,
                    .channels = config_.in_channels,
                    .frames = shape_.frames,
                    .height = shape_.height,
                    .width = shape_.width,
                    .pt = config_.patch[0],
                    .ph = config_.patch[1],
                    .pw = config_.patch[2]};
  ops_.patchify(patches);
  linear(layout_.patch, work(0), rows_, at(buffers_.x));
  tap("patch", at(buffers_.x), rows_ * config_.dim(), dtype_);
  modulated_norm(0, nullptr, {});
  for (std::size_t i = 0; i < layout_.blocks.size(); ++i) block(i, pass);
  linear(layout_.proj_out, at(buffers_.normed), rows_, work(0));
  patches.latents = reinterpret_cast<float*>(at(buffers_.output[p]));
  patches.channels = config_.out_channels;
  ops_.unpatchify(patches);
}

// Three areas serve all blocks: x, the residual stream; normed, what the next operation reads, be
// it a norm's output or attention's; work, where products wider than that go, and their output
// where normed is being read. Each norm takes the residual's update with it.
void Session::block(std::size_t index, int pass) {
  const BlockLayout& layer = layout_.blocks[index];
  const std::int64_t count = rows_ * config_.dim();
  std::byte* const normed = at(buffers_.normed);
  const auto name = [&](const char* part) { return fmt::format("blocks.{}.{}", index, part); };

  self_attention(layer);
  norm(work(0), normed, row_of(layer.table, 2), {.table = weights_.floats(layer.norm2.weight)},
       {.table = weights_.floats(layer.norm2.bias)}, 0);
  if (tap_) tap(name("attn1"), at(buffers_.x), count, dtype_);

  cross_attention(layer, pass);
  norm(work(0), normed, {}, row_of(layer.table, 4), row_of(layer.table, 3), 1);
  if (tap_) tap(name("attn2"), at(buffers_.x), count, dtype_);

  linear(layer.ffn_up, normed, rows_, work(0), Activation::gelu_tanh);
  linear(layer.ffn_down, work(0), rows_, normed);
  modulated_norm(index + 1, normed, row_of(layer.table, 5));
  if (tap_) tap(name("ffn"), at(buffers_.x), count, dtype_);
}

// [batch, length, heads, head_dim], rows of `row` elements.
TensorView Session::heads(void* data, std::int64_t length, std::int64_t row) const {
  const std::array<std::int64_t, 4> shape{shape_.batch, length, config_.heads, config_.head_dim};
  const std::array<std::int64_t, 4> strides{length * row, row, config_.head_dim, 1};
  return {data, dtype_, shape, strides, ops_.device()};
}

void Session::attend(const char* which, const TensorView& q, const TensorView& k,
                     const TensorView& v, void* out) {
  ops_.mark(Work::attention);
  receipts_[which] =
      attention_.forward(q, k, v, heads(out, tokens_, config_.dim()), {.stream = ops_.stream()});
  ops_.mark(Work::other);
}

// normed -> the output in work.
void Session::self_attention(const BlockLayout& layer) {
  const std::int64_t d = config_.dim();
  linear(layer.qkv, at(buffers_.normed), rows_, work(0));
  ops_.rms({.q = work(0),
            .k = work(d),
            .weight_q = weights_.floats(layer.norm_q),
            .weight_k = weights_.floats(layer.norm_k),
            .rows = rows_,
            .d = d,
            .stride = 3 * d,
            .head_dim = config_.head_dim,
            .dtype = dtype_,
            .eps = config_.eps,
            .rope = reinterpret_cast<const float*>(at(buffers_.rope)),
            .tokens = tokens_});
  attend("self", heads(work(0), tokens_, 3 * d), heads(work(d), tokens_, 3 * d),
         heads(work(2 * d), tokens_, 3 * d), at(buffers_.normed));
  linear(layer.self_out, at(buffers_.normed), rows_, work(0));
}

void Session::cross_attention(const BlockLayout& layer, int pass) {
  const std::int64_t d = config_.dim();
  const auto rms = [&](void* rows, std::size_t weight, std::int64_t count, std::int64_t stride) {
    ops_.rms({.q = rows,
              .weight_q = weights_.floats(weight),
              .rows = count,
              .d = d,
              .stride = stride,
              .head_dim = config_.head_dim,
              .dtype = dtype_,
              .eps = config_.eps,
              .tokens = count});
  };
  std::byte* const kv = at(buffers_.kv);
  std::byte* const v = kv + bytes_of(d, dtype_);
  const TensorView q = heads(work(0), tokens_, d);

  linear(layer.cross_q, at(buffers_.normed), rows_, work(0));
  rms(work(0), layer.cross_norm_q, rows_, d);
  const std::int64_t text = shape_.text_tokens;
  linear(layer.cross_kv, at(buffers_.context[static_cast<std::size_t>(pass)]), shape_.batch * text,
         kv);
  rms(kv, layer.cross_norm_k, shape_.batch * text, 2 * d);
  attend("cross", q, heads(kv, text, 2 * d), heads(v, text, 2 * d), at(buffers_.normed));
  if (config_.takes_image()) {
    // A softmax of its own; the two outputs are summed.
    const std::int64_t image = shape_.image_tokens;
    linear(layer.image_kv, at(buffers_.context_image), shape_.batch * image, kv);
    rms(kv, layer.image_norm_k, shape_.batch * image, 2 * d);
    std::byte* const second = work(rows_ * d);
    attend("image", q, heads(kv, image, 2 * d), heads(v, image, 2 * d), second);
    ops_.add(at(buffers_.normed), second, static_cast<std::size_t>(rows_ * d), dtype_);
  }
  linear(layer.cross_out, at(buffers_.normed), rows_, work(0));
}

}  // namespace batten::wan
