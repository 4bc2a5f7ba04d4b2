#include "wan/names.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "io/text.hpp"

namespace batten::wan {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

// Beginnings of names outside of the blocks. Those with an end of their own stand whole.
constexpr std::array<Pair, 13> kGlobal{{
    {"time_embedding.0.", "condition_embedder.time_embedder.linear_1."},
    {"time_embedding.2.", "condition_embedder.time_embedder.linear_2."},
    {"time_projection.1.", "condition_embedder.time_proj."},
    {"text_embedding.0.", "condition_embedder.text_embedder.linear_1."},
    {"text_embedding.2.", "condition_embedder.text_embedder.linear_2."},
    {"img_emb.proj.0.", "condition_embedder.image_embedder.norm1."},
    {"img_emb.proj.1.", "condition_embedder.image_embedder.ff.net.0.proj."},
    {"img_emb.proj.3.", "condition_embedder.image_embedder.ff.net.2."},
    {"img_emb.proj.4.", "condition_embedder.image_embedder.norm2."},
    {"img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed"},
    {"head.head.", "proj_out."},
    {"head.modulation", "scale_shift_table"},
    {"patch_embedding.", "patch_embedding."},
}};

// The same inside a block. Wan calls the norm before cross-attention norm3; diffusers counts them
// in the order of their use, and calls it norm2.
constexpr std::array<Pair, 20> kBlock{{
    {"modulation", "scale_shift_table"},
    {"norm3.", "norm2."},
    {"self_attn.q.", "attn1.to_q."},
    {"self_attn.k.", "attn1.to_k."},
    {"self_attn.v.", "attn1.to_v."},
    {"self_attn.o.", "attn1.to_out.0."},
    {"self_attn.norm_q.", "attn1.norm_q."},
    {"self_attn.norm_k.", "attn1.norm_k."},
    {"cross_attn.q.", "attn2.to_q."},
    {"cross_attn.k.", "attn2.to_k."},
    {"cross_attn.v.", "attn2.to_v."},
    {"cross_attn.o.", "attn2.to_out.0."},
    {"cross_attn.norm_q.", "attn2.norm_q."},
    {"cross_attn.norm_k.", "attn2.norm_k."},
    {"cross_attn.k_img.", "attn2.add_k_proj."},
    {"cross_attn.v_img.", "attn2.add_v_proj."},
    {"cross_attn.norm_k_img.", "attn2.norm_added_k."},
    {"ffn.0.", "ffn.net.0.proj."},
    {"ffn.2.", "ffn.net.2."},
    {"cross_attn.norm_q_img.", "attn2.norm_added_q."},
}};

template <std::size_t N>
std::optional<std::string> renamed(std::string_view name, const std::array<Pair, N>& table) {
  for (const auto& [from, to] : table) {
    const bool whole = from.back() != '.';
    if (whole ? name == from : name.starts_with(from))
      return std::string(to) + std::string(name.substr(from.size()));
  }
  return std::nullopt;
}

std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : {"model.diffusion_model.", "diffusion_model."}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

// "blocks.12." of "blocks.12.ffn.0.bias"; empty for other names.
std::string_view block_prefix(std::string_view name) {
  constexpr std::string_view kBlocks = "blocks.";
  if (!name.starts_with(kBlocks)) return {};
  const std::size_t dot = name.find('.', kBlocks.size());
  return dot == std::string_view::npos ? std::string_view{} : name.substr(0, dot + 1);
}

}  // namespace

std::string diffusers_name(std::string_view name) {
  name = without_prefix(name);
  const std::string_view block = block_prefix(name);
  const std::string_view rest = name.substr(block.size());
  const auto found = block.empty() ? renamed(rest, kGlobal) : renamed(rest, kBlock);
  return found ? std::string(block) + *found : std::string(name);
}

bool has_native_names(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return without_prefix(name).find("self_attn.") != std::string_view::npos;
  });
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t distance = name.size() / 3 + 1;
  for (const std::string& candidate : known) {
    const std::size_t d = io::edit_distance(name, candidate);
    if (d < distance) {
      distance = d;
      best = candidate;
    }
  }
  return best;
}

}  // namespace batten::wan
