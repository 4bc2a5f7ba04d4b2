// Numbers that the host and the kernels must agree on.
#pragma once

namespace batten::impl::native {

inline constexpr int kTileRowsLog2 = 7;
inline constexpr int kTileRows = 1 << kTileRowsLog2;

// Lengths and offsets on the host that fit into a launch's parameters: two arrays of 128 samples,
// with the entry that closes offsets.
inline constexpr int kHostNumbers = 2 * (128 + 1);

// What there are kernels for that join parts of tiles.
inline constexpr int kJoinedHeadDim = 128;
inline constexpr int kJoinedKeys = 128;

// Samples of different lengths that one launch puts in order.
inline constexpr int kMostOrdered = 1024;

// Tiles of a CTA that the list of those to be computed again tells apart.
inline constexpr int kRedoBits = 512;

}  // namespace batten::impl::native
