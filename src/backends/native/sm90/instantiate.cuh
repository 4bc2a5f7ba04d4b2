// Makes an Instance of a policy. For the translation units that hold one kernel each.
#pragma once

#include "backends/native/instance.hpp"
#include "backends/native/sm90/forward.cuh"

namespace batten::impl::native::sm90 {

inline constexpr int kMostSharedBytes = 232448;  // of a CTA on sm90

template <class P>
Instance instance_of(const char* kernel, const char* tile) {
  static_assert(sizeof(SharedMemory<P>) <= kMostSharedBytes);
  Instance i;
  i.kernel = kernel;
  i.tile = tile;
  i.dtype = std::is_same_v<typename P::Element, __nv_bfloat16> ? DType::bf16 : DType::f16;
  i.head_dim = P::kHeadDim;
  i.causal = P::kCausal;
  i.rows = P::kTileRows;
  i.keys = P::kBlockKeys;
  i.columns = kPanelColumns;
  i.q_box_rows = P::kGroupRows;
  i.out_box_rows = P::kWarpRows;
  i.threads = P::kThreads;
  i.shared_bytes = static_cast<int>(sizeof(SharedMemory<P>));
  i.function = reinterpret_cast<const void*>(&forward<P>);
  static_assert(sizeof(SharedMemory<typename P::Dealing>) == sizeof(SharedMemory<P>));
  i.dealing = reinterpret_cast<const void*>(&forward<typename P::Dealing>);
  if constexpr (P::kHeadDim == kJoinedHeadDim && P::kBlockKeys == kJoinedKeys && !P::kCausal) {
    i.joining = reinterpret_cast<const void*>(&forward<typename P::Joining>);
  }
  return i;
}

}  // namespace batten::impl::native::sm90
