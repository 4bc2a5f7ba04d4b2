// "Did you mean ...?": the known word that is nearest to a mistyped one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace batten::tools {

// The nearest of `known` for an option or a value: "" if none is near enough to be meant.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

// The nearest of `known` for a tensor's name. Files name the same tensor "query", "Q" or
// "blocks.0.attn1.q", so a part or the beginning of a name counts before spelling does.
std::string nearest_tensor(std::string_view name, const std::vector<std::string>& known);

}  // namespace batten::tools
