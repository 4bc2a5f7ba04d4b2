// Fast standard normal values for benchmark inputs, where gigabytes are needed.
#pragma once

#include <batten/types.hpp>
#include <cstddef>
#include <cstdint>
#include <span>

namespace batten::tools {

// Fills `out` (elements of `dtype`: f32, f16 or bf16) with normal values that depend on `seed`
// only, on several threads. Values are the 65,536 quantiles of the normal distribution, finer than
// what 16-bit types hold; the largest is 4.3.
void fill_normal(std::span<std::byte> out, DType dtype, std::uint64_t seed);

}  // namespace batten::tools
