// What a Wan transformer is made of: read from config.json, from the tensors, or by a preset's
// name.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace batten::wan {

// The text encoder's length: prompts are padded to it with zeros, and I2V models count on it.
inline constexpr std::int64_t kTextTokens = 512;

struct Config {
  std::array<std::int64_t, 3> patch{1, 2, 2};  // frames, rows, columns of the latent
  std::int64_t heads = 0;
  std::int64_t head_dim = 128;
  std::int64_t in_channels = 16;
  std::int64_t out_channels = 16;
  std::int64_t text_dim = 4096;
  std::int64_t freq_dim = 256;
  std::int64_t ffn_dim = 0;
  std::int64_t layers = 0;
  std::int64_t image_dim = 0;         // of the image embeddings; 0: the model takes none
  std::int64_t image_pos_tokens = 0;  // learned positions of two images' tokens; 0: none
  std::int64_t max_positions = 1024;  // of each axis
  double eps = 1e-6;

  std::int64_t dim() const noexcept { return heads * head_dim; }
  std::int64_t patch_size() const noexcept { return patch[0] * patch[1] * patch[2]; }
  // Elements of a patch on its way in and out.
  std::int64_t patch_in() const noexcept { return in_channels * patch_size(); }
  std::int64_t patch_out() const noexcept { return out_channels * patch_size(); }
  bool takes_image() const noexcept { return image_dim > 0; }
  // Channels that an I2V model takes beside the noisy latents: mask and encoded image.
  std::int64_t condition_channels() const noexcept { return in_channels - out_channels; }
};

// Shapes of a call. Tokens are patches, in the order frame, row, column.
struct Shape {
  std::int64_t batch = 1;
  std::int64_t frames = 0;  // of the latent, as are height and width
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t text_tokens = kTextTokens;
  std::int64_t image_tokens = 0;
  std::int64_t timesteps = 1;  // different ones in the batch, at most

  std::int64_t pixels() const noexcept { return frames * height * width; }
};

// Patches along each axis, and tokens of a sample.
std::array<std::int64_t, 3> grid(const Config& config, const Shape& shape);
std::int64_t tokens(const Config& config, const Shape& shape);

// Floating-point operations of one forward: a multiply-add is two.
struct Flops {
  double self_attention = 0;
  double cross_attention = 0;
  double linear = 0;
  double attention() const noexcept { return self_attention + cross_attention; }
  double total() const noexcept { return attention() + linear; }
};
Flops flops(const Config& config, const Shape& shape);

// "t2v-1.3b", "t2v-14b", "i2v-14b", "ti2v-5b"; throws InvalidArgument naming them.
Config preset(std::string_view name);
const std::vector<std::string>& preset_names();

// From the text of a config.json, diffusers' or Wan's own. `source` stands for the file in
// messages. What the text leaves out has the default of the library that wrote it. Throws
// InvalidArgument for what is missing or no number, Unsupported for variants that are not built
// here.
Config parse_config(std::string_view json, const std::string& source);

// Throws InvalidArgument or Unsupported for a model that cannot be computed here.
void check(const Config& config, const std::string& source);

// Throws InvalidArgument unless the shape fits the model.
void check(const Config& config, const Shape& shape);

}  // namespace batten::wan
