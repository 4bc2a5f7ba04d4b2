// Which of FlashInfer's two kernels serves a call, and what neither can.
#pragma once

#include <optional>
#include <string>

#include "problem/problem.hpp"

namespace batten::impl::single {

enum class Path { sm90, sm80 };

// Whether the sm90 kernel can read the shape's tensors. Its tensor maps have no stride of 0 (keys
// or values shared between rows or heads); the sm80 kernel computes addresses, and takes those.
bool sm90_can_read(const Problem& problem, const Shape& shape);

// The kernel for a device of compute capability `arch` (90 is 9.0).
Path path_of(const Problem& problem, const Shape& shape, int arch);

// Whether the sm80 kernel can write to the shape's output: it knows contiguous rows only.
bool output_is_contiguous(const Problem& problem, const Shape& shape);
// Whether the kernels can write their log-sum-exp there, which they do contiguously.
bool lse_is_contiguous(const Problem& problem, const Shape& shape);

// Why `path` cannot serve the shape, or nothing. `version` is FlashInfer's, for the message.
std::optional<std::string> why_not_path(Path path, const Problem& problem, const Shape& shape,
                                        const char* version);

}  // namespace batten::impl::single
