// What a kernel is compiled for, and the numbers that follow from it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backends/native/limits.hpp"
#include "backends/native/sm90/wgmma.cuh"

namespace batten::impl::native::sm90 {

// How a kernel's CTAs come by what they compute. Each in a kernel of its own, because what stands
// between tiles slows all others down by percents when it is compiled into them.
enum class Work {
  scheduled,  // in rounds, or parts that another launch puts together (schedule.cuh)
  dealt,      // tiles are taken one by one (dealer.cuh)
  joined,     // parts, put together by the CTA that has a tile's first (join.cuh)
};

template <class ElementType, int head_dim, int block_keys, bool causal, Work work = Work::scheduled>
struct Policy {
  using Element = ElementType;
  static constexpr bool kDeals = work == Work::dealt;
  static constexpr bool kJoins = work == Work::joined;
  using Dealing = Policy<ElementType, head_dim, block_keys, causal, Work::dealt>;
  using Joining = Policy<ElementType, head_dim, block_keys, causal, Work::joined>;
  static constexpr bool kCausal = causal;
  static constexpr int kHeadDim = head_dim;
  static constexpr int kBlockKeys = block_keys;  // keys of one step
  static_assert(head_dim % 16 == 0 && block_keys % 16 == 0, "products take 16 at a time");

  // Whether tiles can be divided. Under a causal mask they differ in length.
  static constexpr bool kDivides = !kCausal && !kDeals;

  static constexpr int kGroups = 2;      // consumer warpgroups
  static constexpr int kGroupRows = 64;  // query rows of one
  static constexpr int kTileRows = kGroups * kGroupRows;
  static_assert(kTileRows == native::kTileRows);
  static constexpr int kWarpRows = 16;
  static constexpr int kStages = 2;  // of keys, and of values
  // Of queries: two where they fit, so that a tile's have arrived long before it begins.
  static constexpr int kQueryStages = head_dim * (block_keys + 64) <= 128 * (128 + 64) ? 2 : 1;
  // Whether a tile's queries move to registers when it begins. Head dim 256 would need 64 of them.
  static constexpr bool kQueriesInRegisters = head_dim <= 128;
  static constexpr int kThreads = 128 * (1 + kGroups);

  static constexpr int kPanels = (head_dim + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kBlockPanelBytes = block_keys * kPanelRowBytes;
  static constexpr int kRowsPanelBytes = kGroupRows * kPanelRowBytes;

  // Whether the output leaves through shared memory; head dim 256 has no room for it.
  static constexpr bool kStagesOutput = head_dim <= 128;

  // Registers of a thread: scores of a block, and the output.
  static constexpr int kScores = block_keys / 2;
  static constexpr int kOutputs = head_dim / 2;

  // Lazy softmax takes its reference from a tile's first keys: 32 of them where weights have the
  // range of fp32; where they end at 2^16, all of the block, so that later ones exceed it by less.
  static constexpr int kReferenceScores = std::is_same_v<Element, __half> ? kScores : 32 / 2;

  // setmaxnreg: the sum over a CTA's threads stays within the 65,536 of an SM.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
  static_assert(128 * kProducerRegisters + 128 * kGroups * kConsumerRegisters <= 65536);
};

}  // namespace batten::impl::native::sm90
