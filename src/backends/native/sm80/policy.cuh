// What a kernel is compiled for, and the numbers that follow from it.
#pragma once

#include "backends/native/limits.hpp"
#include "backends/native/shared/elements.cuh"
#include "backends/native/sm80/configuration.hpp"
#include "backends/native/sm80/ptx.cuh"

namespace batten::impl::native::sm80 {

template <class ElementType, int index>
struct Policy {
  static constexpr Configuration kConfiguration = kConfigurations[index];
  using Element = ElementType;
  static constexpr int kHeadDim = kConfiguration.head_dim;
  static constexpr int kBlockKeys = kConfiguration.block_keys;  // keys of one step
  static_assert(kHeadDim % 16 == 0 && kBlockKeys % 16 == 0, "products take 16 at a time");

  static constexpr int kTileRows = native::kTileRows;
  static constexpr int kWarps = kConfiguration.warps;
  static constexpr int kThreads = 32 * kWarps;
  // Warps that share rows are a group: in scores each has a part of the keys, in values all keys
  // and a part of the columns.
  static constexpr int kSides = kConfiguration.sides;
  static constexpr int kGroups = kWarps / kSides;
  static_assert(kSides <= 2, "a pair");
  static constexpr int kWarpRows = kTileRows / kGroups;
  static constexpr int kWarpKeys = kBlockKeys / kSides;
  static constexpr int kWarpColumns = kHeadDim / kSides;
  static constexpr int kRowTiles = kWarpRows / 16;   // of a warp: what one product's rows are
  static constexpr int kCtas = kMostWarps / kWarps;  // on a multiprocessor, at most

  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kChunks = kRowBytes / 16;  // what a thread copies at a time
  static constexpr int kQueryBytes = kTileRows * kRowBytes;
  static constexpr int kBlockBytes = kBlockKeys * kRowBytes;

  // Steps of 16: along the head in scores, along the keys in values.
  static constexpr int kHeadSteps = kHeadDim / 16;
  static constexpr int kKeySteps = kBlockKeys / 16;
  static constexpr int kWarpKeySteps = kWarpKeys / 16;
  static constexpr int kColumnSteps = kWarpColumns / 16;  // of values

  // Steps of the head whose queries stay in registers for all of a tile: as many as have room
  // beside outputs and scores. (Not with pairs, which exchange weights; 32 rows with 32 keys were
  // slower.)
  static constexpr int kRoom = (192 - kConfiguration.registers()) / (4 * kRowTiles);
  static constexpr bool kKeepsQueries = kSides == 1 && (kRowTiles == 1 || kBlockKeys > 32);
  static constexpr int kKeptSteps = !kKeepsQueries ? 0 : kRoom < kHeadSteps ? kRoom : kHeadSteps;
  static_assert(kKeptSteps >= 0);

  // Lazy softmax takes its reference from a warp's first keys of a tile: 32 of them where weights
  // have the range of fp32; where they end at 2^16, all of its, so that later ones exceed it
  // by less.
  static constexpr int kReferenceEights = std::is_same_v<Element, __half> ? kWarpKeys / 8 : 4;
};

}  // namespace batten::impl::native::sm80
