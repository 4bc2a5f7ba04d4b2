// cuDNN's texts, made fit for one line of ours.
#pragma once

#include <string>
#include <string_view>

namespace batten::impl::cudnn {

// Without line ends and the frontend's prefixes, and at most about 200 characters.
std::string one_line(std::string_view message);

// The kernel that a serialised plan names, without cuDNN's long prefix and suffix, or `fallback`.
std::string kernel_name(std::string_view serialized, std::string_view fallback);

}  // namespace batten::impl::cudnn
