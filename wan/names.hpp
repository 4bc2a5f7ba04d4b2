// Tensor names of the two families of Wan checkpoints. Inside batten they are diffusers'.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace batten::wan {

// The diffusers name of a tensor that Wan's own checkpoints (and repacks of them, which put
// "model.diffusion_model." or "diffusion_model." in front) name `name`. Names that are diffusers'
// already, and unknown ones, come back as they are.
std::string diffusers_name(std::string_view name);

// Whether the names are Wan's own.
bool has_native_names(const std::vector<std::string>& names);

// The name in `known` that is nearest to `name` by edits; empty if none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

}  // namespace batten::wan
