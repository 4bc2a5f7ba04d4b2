// What the sm90 kernels serve, and which of them a call gets; what both families take of a call.
// target.hpp asks here or in sm80/. Nothing here needs CUDA.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/backend.hpp"
#include "backends/native/limits.hpp"

namespace batten::impl::native {

// Why the sm90 kernels cannot serve the problem, or the shape, or nothing.
std::optional<std::string> why_not(const Problem& problem);
std::optional<std::string> why_not(const Problem& problem, const Shape& shape);

// The same, as far as it holds for both families: of the elements, and of what is counted.
std::optional<std::string> why_not_elements(const Problem& problem);
std::optional<std::string> why_not_counts(const Problem& problem, const Shape& shape);

// What a plan bakes in: sizes, and where lengths lie. Layouts come with the call.
Shape plan_key(const Shape& shape);

// The problem without a mask that hides nothing from the shape.
Problem without_idle_mask(const Problem& problem, const Shape& shape);

// Why tiles cannot be divided, or nothing.
std::optional<std::string> why_not_divided(const Problem& problem, const Shape& shape);

// Forms that a user may force: another tile, online softmax throughout, tiles that are never
// divided, or wherever they can be.
std::vector<std::string> forms();
inline constexpr const char* kOnline = "online";
inline constexpr const char* kWhole = "whole";
inline constexpr const char* kDivided = "divided";  // and put together by a second launch
inline constexpr const char* kJoined = "joined";    // and put together by the first

// Whether a form is a tile's, as "128x144".
bool names_tile(const std::string& form);

// Why the sm90 kernels cannot have the form, or nothing.
std::optional<std::string> why_not_form(const Problem& problem, const std::string& form);

// Keys of a step of the sm90 kernels, for a form or by the shape, for so many CTAs at a time.
int block_keys(const Problem& problem, const Shape& shape, const std::string& form, int ctas);

// Samples of one launch: those whose lengths and offsets fit, and whose tiles have bits of their
// own in that list, so that no sample is computed differently because of another. A plan's key has
// neither the offsets nor the rows of a packed call: its answer is as large as any of its calls'.
std::int64_t samples_of_launch(const Problem& problem, const Shape& shape, int ctas);

// Whether CTAs of a launch take tiles one by one: samples may differ in length, and a CTA has more
// than one tile. True of a plan's key where it is of any call.
bool takes_tiles(const Problem& problem, const Shape& shape, int ctas);

// Tiles with rows that so many samples of a call have, at most: packed ones have the rows of their
// tensor, however long max_q.
std::int64_t most_tiles(const Problem& problem, const Shape& shape, std::int64_t samples);

// Bytes of L2 cache that a launch counts on for keys and values.
inline constexpr std::int64_t kCachedBytes = std::int64_t{24} << 20;

// The order in which tiles are dealt out under a causal mask: by sections of so many heads, few
// enough that their keys and values (`head_bytes` for each of the heads) stay in the L2 cache, and
// such that all CTAs get about as much to do.
int section_heads(int row_tiles, int heads, int ctas, std::int64_t head_bytes);

}  // namespace batten::impl::native
