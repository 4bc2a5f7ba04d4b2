// Files that tell `batten wan denoise` what to show.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "wan/config.hpp"

namespace batten::tools {

// A tensor of a file as float32.
struct FloatTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

// Text embeddings [videos, 512, text_dim], zeros after each prompt's own tokens. The file holds
// [videos, tokens, text_dim] or [tokens, text_dim] under one of `names`, or one tensor alone.
// Throws InvalidArgument for another width, more than 512 tokens, another dtype, and for NaN.
FloatTensor read_text(const std::string& path, const std::vector<std::string>& names,
                      const wan::Config& config);

// Whether the file has a tensor of this name.
bool has_tensor(const std::string& path, const std::string& name);

// The tensor `name` with the extents of `shape`, where -1 stands for any and extent 0 may be left
// out if it is 1. `what` says what it is, for messages.
FloatTensor read_tensor(const std::string& path, const std::string& name,
                        const std::vector<std::int64_t>& shape, const std::string& what);

// The same values for each of `videos`, where the tensor holds one video's.
void repeat(FloatTensor& tensor, std::int64_t videos, const std::string& what);

}  // namespace batten::tools
