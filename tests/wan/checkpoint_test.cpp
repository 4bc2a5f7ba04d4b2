// Configurations, names and presets.
#include <gtest/gtest.h>

#include <batten/types.hpp>

#include "fakes/expect_error.hpp"
#include "wan/config.hpp"
#include "wan/layout.hpp"
#include "wan/names.hpp"

namespace batten::wan {
namespace {

using batten::testing::expect_error;

// Counted from the published checkpoints' shapes.
TEST(Preset, HaveThePublishedModelsParameters) {
  const auto parameters = [](const char* name) {
    return make_layout(preset(name), DType::bf16).parameters();
  };
  EXPECT_EQ(parameters("t2v-1.3b"), 1'418'996'800U);
  EXPECT_EQ(make_layout(preset("t2v-1.3b"), DType::bf16).slots.size(), 825U);
  EXPECT_NEAR(static_cast<double>(parameters("t2v-14b")), 14.29e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(parameters("i2v-14b")), 16.4e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(parameters("ti2v-5b")), 5.0e9, 0.05e9);
  expect_error(ErrorCode::InvalidArgument, {"t2v-14b"}, [] { preset("t2v-2b"); });
}

TEST(Flops, AreThoseOfOneForward) {
  const Shape shape{.batch = 1, .frames = 21, .height = 60, .width = 104};
  const Flops f = flops(preset("t2v-1.3b"), shape);
  EXPECT_EQ(tokens(preset("t2v-1.3b"), shape), 32'760);
  EXPECT_NEAR(f.self_attention / 1e12, 197.8, 0.1);
  EXPECT_NEAR(f.linear / 1e12, 81.9, 0.5);
  EXPECT_NEAR(f.cross_attention / 1e12, 3.1, 0.1);
}

TEST(Names, OfWanBecomeThoseOfDiffusers) {
  const std::vector<std::pair<const char*, const char*>> pairs{
      {"patch_embedding.weight", "patch_embedding.weight"},
      {"time_embedding.0.weight", "condition_embedder.time_embedder.linear_1.weight"},
      {"time_embedding.2.bias", "condition_embedder.time_embedder.linear_2.bias"},
      {"time_projection.1.weight", "condition_embedder.time_proj.weight"},
      {"text_embedding.2.weight", "condition_embedder.text_embedder.linear_2.weight"},
      {"head.head.bias", "proj_out.bias"},
      {"head.modulation", "scale_shift_table"},
      {"img_emb.proj.1.weight", "condition_embedder.image_embedder.ff.net.0.proj.weight"},
      {"img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed"},
      {"blocks.11.modulation", "blocks.11.scale_shift_table"},
      {"blocks.0.norm3.weight", "blocks.0.norm2.weight"},
      {"blocks.0.self_attn.q.weight", "blocks.0.attn1.to_q.weight"},
      {"blocks.0.self_attn.norm_k.weight", "blocks.0.attn1.norm_k.weight"},
      {"blocks.0.self_attn.o.bias", "blocks.0.attn1.to_out.0.bias"},
      {"blocks.7.cross_attn.k_img.weight", "blocks.7.attn2.add_k_proj.weight"},
      {"blocks.7.cross_attn.norm_k_img.weight", "blocks.7.attn2.norm_added_k.weight"},
      {"blocks.3.ffn.0.bias", "blocks.3.ffn.net.0.proj.bias"},
      {"model.diffusion_model.blocks.3.ffn.2.bias", "blocks.3.ffn.net.2.bias"},
  };
  for (const auto& [wan, diffusers] : pairs) EXPECT_EQ(diffusers_name(wan), diffusers) << wan;
  EXPECT_TRUE(has_native_names({"blocks.0.self_attn.q.weight"}));
  EXPECT_FALSE(has_native_names({"blocks.0.attn1.to_q.weight"}));
}

TEST(Names, OfDiffusersStay) {
  Config config = preset("i2v-14b");
  config.image_pos_tokens = 514;
  for (const Slot& slot : make_layout(config, DType::f32).slots)
    EXPECT_EQ(diffusers_name(slot.name), slot.name);
}

TEST(ParseConfig, OfDiffusersAndOfWan) {
  const Config a = parse_config(
      R"({"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 30,
          "image_dim": null, "qk_norm": "rms_norm_across_heads", "cross_attn_norm": true})",
      "config.json");
  EXPECT_EQ(a.dim(), 1536);
  EXPECT_FALSE(a.takes_image());
  const Config b = parse_config(
      R"({"model_type": "i2v", "dim": 5120, "num_heads": 40, "ffn_dim": 13824, "num_layers": 40,
          "in_dim": 36, "out_dim": 16, "freq_dim": 256})",
      "config.json");
  EXPECT_EQ(b.head_dim, 128);
  EXPECT_EQ(b.image_dim, 1280);
  EXPECT_EQ(b.condition_channels(), 20);
}

TEST(ParseConfig, SaysWhatIsWrong) {
  const auto refuses = [](ErrorCode code, const char* json, const char* text) {
    const std::string message = expect_error(code, {text}, [&] { parse_config(json, "c.json"); });
    EXPECT_EQ(message.find("c.json"), 0U) << message;
  };
  const auto says = [&](const char* json, const char* text) {
    refuses(ErrorCode::InvalidArgument, json, text);
  };
  const auto unsupported = [&](const std::string& json, const char* text) {
    refuses(ErrorCode::Unsupported, json.c_str(), text);
  };
  const std::string full = R"("num_attention_heads": 2, "ffn_dim": 8, "num_layers": 1)";
  const auto with = [&](const char* more) { return "{" + full + ", " + more + "}"; };
  says("[1]", "no JSON object");
  says("{", "no JSON object");
  says("{}", "'num_attention_heads' is missing");
  says(with(R"("ffn_dim": -3)").c_str(), "'ffn_dim' is -3");
  says(with(R"("ffn_dim": "wide")").c_str(), "expected a whole number");
  says(with(R"("patch_size": [1, 2])").c_str(), "'patch_size'");
  unsupported(with(R"("qk_norm": null, "cross_attn_norm": false)"), "only true is supported");
  unsupported(with(R"("qk_norm": "layer_norm")"), "'qk_norm'");
  unsupported(with(R"("attention_head_dim": 12)"), "head dim 12");
  says(with(R"("num_layers": 0)").c_str(), "no layers");
  says(with(R"("freq_dim": 7)").c_str(), "freq_dim");
  says(with(R"("eps": 0)").c_str(), "eps");
  says(R"({"dim": 64, "num_heads": 2, "ffn_dim": 8, "num_layers": 1, "model_type": 7})",
       "'model_type' is 7, expected a text");
  says(with(R"("in_channels": 4, "out_channels": 8)").c_str(), "fewer channels");
}

}  // namespace
}  // namespace batten::wan
