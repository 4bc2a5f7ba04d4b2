// Where each of a model's weights lies in one block of memory.
#pragma once

#include <batten/types.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "wan/config.hpp"

namespace batten::wan {

// Bytes: where weights and activations begin, so that products take them by their widest loads.
inline constexpr std::size_t kAlignment = 256;

// One tensor of a checkpoint.
struct Slot {
  std::string name;  // diffusers'
  std::vector<std::int64_t> shape;
  DType dtype = DType::none;  // in memory, whatever the file holds
  std::size_t offset = 0;     // bytes from the start of the weights
  float mean = 0;             // of random weights, and half of their range
  float spread = 0;

  std::size_t count() const noexcept;
  std::size_t bytes() const noexcept { return count() * size_of(dtype); }
};

// y = x W' + b: W [out, in], then b [out]. Offsets as in Slot.
struct Linear {
  std::size_t weight = 0;
  std::size_t bias = 0;
  std::int64_t out = 0;
  std::int64_t in = 0;
  DType dtype = DType::none;
};

// An affine LayerNorm, float32.
struct Norm {
  std::size_t weight = 0;
  std::size_t bias = 0;
};

struct BlockLayout {
  std::size_t table = 0;  // float32 [6, d]: shift, scale and gate of attention, then of the ffn
  Linear qkv;             // q, k and v as one product
  std::size_t norm_q = 0, norm_k = 0;  // float32 [d], as all RMS weights
  Linear self_out;
  Norm norm2;
  Linear cross_q;
  Linear cross_kv;  // k and v of the text
  std::size_t cross_norm_q = 0, cross_norm_k = 0;
  Linear image_kv;  // k and v of the image tokens
  std::size_t image_norm_k = 0;
  Linear cross_out;
  Linear ffn_up, ffn_down;
};

struct Layout {
  DType dtype = DType::none;  // of the linears, except the timestep's
  std::vector<Slot> slots;
  std::size_t bytes = 0;

  Linear patch;
  Linear time1, time2;  // float32 in every model
  Linear time_proj;
  Linear text1, text2;
  Norm image_norm1, image_norm2;
  Linear image1, image2;
  std::size_t image_positions = 0;  // float32
  std::vector<BlockLayout> blocks;
  Linear proj_out;
  std::size_t table = 0;  // float32 [2, d]: shift and scale of the head

  // Parameters of the model.
  std::uint64_t parameters() const noexcept;
};

// The weights of `config` with linears in `dtype`: f32, f16 or bf16.
Layout make_layout(const Config& config, DType dtype);

}  // namespace batten::wan
