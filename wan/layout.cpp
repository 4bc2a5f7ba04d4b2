#include "wan/layout.hpp"

#include <fmt/format.h>

#include <cmath>

namespace batten::wan {
namespace {

class Builder {
 public:
  explicit Builder(Layout& layout) : layout_(layout) {}

  std::size_t add(std::string name, std::vector<std::int64_t> shape, DType dtype, float mean,
                  float spread) {
    Slot slot{.name = std::move(name),
              .shape = std::move(shape),
              .dtype = dtype,
              .offset = layout_.bytes,
              .mean = mean,
              .spread = spread};
    layout_.bytes += slot.bytes();
    layout_.slots.push_back(std::move(slot));
    return layout_.slots.back().offset;
  }
  void align() { layout_.bytes = (layout_.bytes + kAlignment - 1) / kAlignment * kAlignment; }

  std::size_t vector(std::string name, std::int64_t n, float mean = 0) {
    align();
    return add(std::move(name), {n}, DType::f32, mean, 0.1F);
  }
  std::size_t table(std::string name, std::int64_t rows, std::int64_t d) {
    align();
    return add(std::move(name), {1, rows, d}, DType::f32, 0, spread_of(d));
  }
  Norm norm(const std::string& name, std::int64_t n) {
    return {.weight = vector(name + ".weight", n, 1), .bias = vector(name + ".bias", n)};
  }
  // Several linears of the same input as one: their rows follow each other.
  Linear linear(const std::vector<std::string>& names, std::int64_t out, std::int64_t in,
                DType dtype, std::vector<std::int64_t> weight_shape = {}) {
    if (weight_shape.empty()) weight_shape = {out, in};
    Linear l{.out = out * static_cast<std::int64_t>(names.size()), .in = in, .dtype = dtype};
    align();
    l.weight = layout_.bytes;
    for (const std::string& name : names)
      add(name + ".weight", weight_shape, dtype, 0, spread_of(in));
    align();
    l.bias = layout_.bytes;
    for (const std::string& name : names) add(name + ".bias", {out}, dtype, 0, 0.02F);
    return l;
  }

 private:
  // Uniform in (-spread, spread) has the variance 1 / n: widths are kept.
  static float spread_of(std::int64_t n) { return std::sqrt(3.0F / static_cast<float>(n)); }

  Layout& layout_;
};

BlockLayout block(Builder& b, const Config& c, std::int64_t index, DType dtype) {
  const std::int64_t d = c.dim();
  const auto name = [&](const char* rest) { return fmt::format("blocks.{}.{}", index, rest); };
  BlockLayout l;
  l.table = b.table(name("scale_shift_table"), 6, d);
  l.qkv = b.linear({name("attn1.to_q"), name("attn1.to_k"), name("attn1.to_v")}, d, d, dtype);
  l.norm_q = b.vector(name("attn1.norm_q.weight"), d, 1);
  l.norm_k = b.vector(name("attn1.norm_k.weight"), d, 1);
  l.self_out = b.linear({name("attn1.to_out.0")}, d, d, dtype);
  l.norm2 = b.norm(name("norm2"), d);
  l.cross_q = b.linear({name("attn2.to_q")}, d, d, dtype);
  l.cross_kv = b.linear({name("attn2.to_k"), name("attn2.to_v")}, d, d, dtype);
  l.cross_norm_q = b.vector(name("attn2.norm_q.weight"), d, 1);
  l.cross_norm_k = b.vector(name("attn2.norm_k.weight"), d, 1);
  if (c.takes_image()) {
    l.image_kv = b.linear({name("attn2.add_k_proj"), name("attn2.add_v_proj")}, d, d, dtype);
    l.image_norm_k = b.vector(name("attn2.norm_added_k.weight"), d, 1);
  }
  l.cross_out = b.linear({name("attn2.to_out.0")}, d, d, dtype);
  l.ffn_up = b.linear({name("ffn.net.0.proj")}, c.ffn_dim, d, dtype);
  l.ffn_down = b.linear({name("ffn.net.2")}, d, c.ffn_dim, dtype);
  return l;
}

void image_embedder(Builder& b, const Config& c, DType dtype, Layout& l) {
  const std::string name = "condition_embedder.image_embedder";
  if (c.image_pos_tokens > 0) {
    b.align();
    l.image_positions =
        b.add(name + ".pos_embed", {1, c.image_pos_tokens, c.image_dim}, DType::f32, 0, 0.1F);
  }
  l.image_norm1 = b.norm(name + ".norm1", c.image_dim);
  l.image1 = b.linear({name + ".ff.net.0.proj"}, c.image_dim, c.image_dim, dtype);
  l.image2 = b.linear({name + ".ff.net.2"}, c.dim(), c.image_dim, dtype);
  l.image_norm2 = b.norm(name + ".norm2", c.dim());
}

}  // namespace

std::size_t Slot::count() const noexcept {
  std::size_t n = 1;
  for (const std::int64_t extent : shape) n *= static_cast<std::size_t>(extent);
  return n;
}

std::uint64_t Layout::parameters() const noexcept {
  std::uint64_t n = 0;
  for (const Slot& slot : slots) n += slot.count();
  return n;
}

Layout make_layout(const Config& c, DType dtype) {
  Layout l;
  l.dtype = dtype;
  Builder b(l);
  const std::int64_t d = c.dim();
  const std::string embedder = "condition_embedder.";
  l.patch = b.linear({"patch_embedding"}, d, c.patch_in(), dtype,
                     {d, c.in_channels, c.patch[0], c.patch[1], c.patch[2]});
  l.time1 = b.linear({embedder + "time_embedder.linear_1"}, d, c.freq_dim, DType::f32);
  l.time2 = b.linear({embedder + "time_embedder.linear_2"}, d, d, DType::f32);
  l.time_proj = b.linear({embedder + "time_proj"}, 6 * d, d, dtype);
  l.text1 = b.linear({embedder + "text_embedder.linear_1"}, d, c.text_dim, dtype);
  l.text2 = b.linear({embedder + "text_embedder.linear_2"}, d, d, dtype);
  if (c.takes_image()) image_embedder(b, c, dtype, l);
  for (std::int64_t i = 0; i < c.layers; ++i) l.blocks.push_back(block(b, c, i, dtype));
  l.proj_out = b.linear({"proj_out"}, c.patch_out(), d, dtype);
  l.table = b.table("scale_shift_table", 2, d);
  b.align();
  return l;
}

}  // namespace batten::wan
