#include "wan/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace batten::wan {
namespace {

using nlohmann::json;

Config make(std::int64_t heads, std::int64_t ffn_dim, std::int64_t layers) {
  Config config;
  config.heads = heads;
  config.ffn_dim = ffn_dim;
  config.layers = layers;
  return config;
}

// Reads fields of one document; every fault names the file and the field.
class Fields {
 public:
  Fields(const json& document, const std::string& source) : json_(document), source_(source) {}

  bool has(const char* name) const { return json_.contains(name) && !json_[name].is_null(); }

  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    if (!has(name)) return otherwise;
    const json& value = json_[name];
    if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > 1e9)
      wrong(name, "a whole number");
    return value.get<std::int64_t>();
  }
  std::int64_t integer(const char* name) const {
    if (!has(name)) {
      fail(ErrorCode::InvalidArgument,
           "{}: '{}' is missing; is it a Wan transformer's config.json?", source_, name);
    }
    return integer(name, 0);
  }
  double number(const char* name, double otherwise) const {
    if (!has(name)) return otherwise;
    if (!json_[name].is_number()) wrong(name, "a number");
    return json_[name].get<double>();
  }
  std::string text(const char* name, const char* otherwise) const {
    if (!has(name)) return otherwise;
    if (!json_[name].is_string()) wrong(name, "a text");
    return json_[name].get<std::string>();
  }
  // Nothing else is built: every published Wan has it so.
  void must_be(const char* name, const json& expected) const {
    if (!has(name) || json_[name] == expected) return;
    fail(ErrorCode::Unsupported, "{}: '{}' is {}, only {} is supported", source_, name,
         json_[name].dump(), expected.dump());
  }
  std::array<std::int64_t, 3> patch() const {
    if (!has("patch_size")) return {1, 2, 2};
    const json& value = json_["patch_size"];
    if (!value.is_array() || value.size() != 3) wrong("patch_size", "three whole numbers");
    std::array<std::int64_t, 3> patch{};
    for (std::size_t i = 0; i < 3; ++i) {
      if (!value[i].is_number_integer() || value[i] < 1 || value[i] > 64)
        wrong("patch_size", "three whole numbers from 1 to 64");
      patch[i] = value[i].get<std::int64_t>();
    }
    return patch;
  }

 private:
  [[noreturn]] void wrong(const char* name, const char* expected) const {
    fail(ErrorCode::InvalidArgument, "{}: '{}' is {}, expected {}", source_, name,
         json_[name].dump().substr(0, 80), expected);
  }

  const json& json_;
  const std::string& source_;
};

Config diffusers_config(const Fields& fields) {
  Config c;
  c.patch = fields.patch();
  c.heads = fields.integer("num_attention_heads");
  c.head_dim = fields.integer("attention_head_dim", 128);
  c.in_channels = fields.integer("in_channels", 16);
  c.out_channels = fields.integer("out_channels", c.in_channels);
  c.text_dim = fields.integer("text_dim", 4096);
  c.freq_dim = fields.integer("freq_dim", 256);
  c.ffn_dim = fields.integer("ffn_dim");
  c.layers = fields.integer("num_layers");
  c.image_dim = fields.integer("image_dim", 0);
  c.image_pos_tokens = fields.integer("pos_embed_seq_len", 0);
  c.max_positions = fields.integer("rope_max_seq_len", 1024);
  c.eps = fields.number("eps", 1e-6);
  fields.must_be("cross_attn_norm", true);
  fields.must_be("qk_norm", "rms_norm_across_heads");
  if (c.image_dim > 0 && fields.has("added_kv_proj_dim"))
    fields.must_be("added_kv_proj_dim", c.dim());
  return c;
}

Config native_config(const Fields& fields) {
  Config c;
  c.patch = fields.patch();
  const std::int64_t dim = fields.integer("dim");
  c.heads = fields.integer("num_heads");
  c.head_dim = c.heads > 0 && dim % c.heads == 0 ? dim / c.heads : 0;
  c.in_channels = fields.integer("in_dim", 16);
  c.out_channels = fields.integer("out_dim", 16);
  c.text_dim = fields.integer("text_dim", 4096);
  c.freq_dim = fields.integer("freq_dim", 256);
  c.ffn_dim = fields.integer("ffn_dim");
  c.layers = fields.integer("num_layers");
  c.eps = fields.number("eps", 1e-6);
  fields.must_be("cross_attn_norm", true);
  fields.must_be("qk_norm", true);
  const std::string type = fields.text("model_type", "t2v");
  if (type == "i2v" || type == "flf2v") c.image_dim = 1280;
  if (type == "flf2v") c.image_pos_tokens = 514;
  return c;
}

}  // namespace

std::array<std::int64_t, 3> grid(const Config& config, const Shape& shape) {
  return {shape.frames / config.patch[0], shape.height / config.patch[1],
          shape.width / config.patch[2]};
}

std::int64_t tokens(const Config& config, const Shape& shape) {
  const auto n = grid(config, shape);
  return n[0] * n[1] * n[2];
}

Flops flops(const Config& c, const Shape& shape) {
  const auto b = static_cast<double>(shape.batch);
  const auto s = static_cast<double>(tokens(c, shape));
  const auto text = static_cast<double>(shape.text_tokens);
  const auto image = static_cast<double>(c.takes_image() ? shape.image_tokens : 0);
  const auto d = static_cast<double>(c.dim());
  const auto layers = static_cast<double>(c.layers);
  const auto ffn = static_cast<double>(c.ffn_dim);
  const auto ends = static_cast<double>(c.patch_in() + c.patch_out());
  Flops f;
  f.self_attention = 4 * b * s * s * d * layers;
  f.cross_attention = 4 * b * s * (text + image) * d * layers;
  f.linear = 2 * b * s * (layers * (6 * d * d + 2 * d * ffn) + d * ends) +
             2 * b * (text + image) * 2 * d * d * layers;
  return f;
}

const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> names{"t2v-1.3b", "t2v-14b", "i2v-14b", "ti2v-5b"};
  return names;
}

Config preset(std::string_view name) {
  if (name == "t2v-1.3b") return make(12, 8960, 30);
  if (name == "t2v-14b") return make(40, 13824, 40);
  if (name == "i2v-14b") {
    Config config = make(40, 13824, 40);
    config.in_channels = 36;
    config.image_dim = 1280;
    return config;
  }
  if (name == "ti2v-5b") {
    Config config = make(24, 14336, 30);
    config.in_channels = config.out_channels = 48;
    return config;
  }
  fail(ErrorCode::InvalidArgument, "preset '{}' is none of {}", name,
       fmt::join(preset_names(), ", "));
}

Config parse_config(std::string_view text, const std::string& source) {
  const json document = json::parse(text, nullptr, false);
  if (!document.is_object())
    fail(ErrorCode::InvalidArgument, "{}: no JSON object, expected a model's config.json", source);
  const Fields fields(document, source);
  const bool native = document.contains("dim") && document.contains("num_heads");
  const Config config = native ? native_config(fields) : diffusers_config(fields);
  check(config, source);
  return config;
}

void check(const Config& c, const std::string& source) {
  const auto require = [&](bool fine, const std::string& what) {
    if (!fine) fail(ErrorCode::InvalidArgument, "{}: {}", source, what);
  };
  require(c.heads > 0 && c.head_dim > 0, "the model has no heads, or a width they do not divide");
  require(c.layers > 0, "the model has no layers");
  require(c.ffn_dim > 0 && c.in_channels > 0 && c.out_channels > 0 && c.text_dim > 0,
          "a width of the model is 0");
  require(c.freq_dim > 0 && c.freq_dim % 2 == 0, "freq_dim is not an even number");
  require(c.in_channels >= c.out_channels, "the model takes fewer channels than it gives");
  require(std::isfinite(c.eps) && c.eps > 0, "eps is not a positive number");
  if (c.head_dim % 8 != 0) {
    fail(ErrorCode::Unsupported, "{}: head dim {} is no multiple of 8, which every backend needs",
         source, c.head_dim);
  }
}

void check(const Config& c, const Shape& s) {
  const std::array<std::int64_t, 3> size{s.frames, s.height, s.width};
  const std::array<const char*, 3> axis{"frames", "rows", "columns"};
  for (std::size_t i = 0; i < 3; ++i) {
    if (size[i] <= 0 || size[i] % c.patch[i] != 0) {
      fail(ErrorCode::InvalidArgument,
           "the latent has {} {}, expected a multiple of the patch's {}", size[i], axis[i],
           c.patch[i]);
    }
    if (size[i] / c.patch[i] > c.max_positions) {
      fail(ErrorCode::InvalidArgument, "the latent has {} {}, the model has positions for {}",
           size[i], axis[i], c.max_positions * c.patch[i]);
    }
  }
  if (s.batch <= 0 || s.text_tokens <= 0 || s.timesteps <= 0)
    fail(ErrorCode::InvalidArgument, "batch, text tokens and timesteps must be at least 1");
  if (c.takes_image() != (s.image_tokens > 0)) {
    fail(ErrorCode::InvalidArgument, "the model {} image embeddings, and {} tokens were given",
         c.takes_image() ? "needs" : "takes no", s.image_tokens);
  }
  if (c.image_pos_tokens > 0 && s.image_tokens != c.image_pos_tokens) {
    fail(ErrorCode::InvalidArgument,
         "{} image tokens were given, the model has positions for {} (a first and a last image)",
         s.image_tokens, c.image_pos_tokens);
  }
}

}  // namespace batten::wan
