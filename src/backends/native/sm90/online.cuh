// Online softmax: the second pass of a consumer, over the tiles that left the range of lazy
// softmax.
#pragma once

#include "backends/native/sm90/consumer.cuh"

namespace batten::impl::native::sm90 {

template <class P>
__device__ __forceinline__ void Consumer<P>::compute_online() {
  float maximum[2] = {-INFINITY, -INFINITY};
  sum_[0] = sum_[1] = 0;
#pragma unroll 1
  for (; block_ < blocks_; ++block_, ++count_) {
    const int stage = stage_of(count_);
    const int parity = parity_of(count_);
    wait(shared_.full_k[stage], parity);
    issue_scores(stage);
    if (block_ == 0) first_scores_are_issued();
    wgmma_wait<0>();
    wgmma_arrived(scores_);
    release(shared_.empty_k[stage]);
    if (block_ + 1 == blocks_) last_scores_are_done();
    if (block_ >= first_masked_) mask_scores();

    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < P::kScores; ++i) {
      largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], scores_[i] * a_.scale_log2);
    }
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = fmaxf(maximum[r], row_maximum(largest[r]));
      reference_[r] = largest[r] == -INFINITY ? 0 : largest[r];
      shrink[r] = exp2_fast(maximum[r] - reference_[r]);
      maximum[r] = largest[r];
      sum_[r] *= shrink[r];
    }
    if (block_ > 0) {
#pragma unroll
      for (int i = 0; i < P::kOutputs; ++i) out_[i] *= shrink[i / 2 % 2];
    }
    compute_weights();
    pack_weights();
    wait(shared_.full_v[stage], parity);
    issue_values(stage, block_ > 0);
    wgmma_wait<0>();
    wgmma_arrived(out_);
    if constexpr (P::kCausal) take_set_aside();
    release(shared_.empty_v[stage]);
  }
  ended_ = end_of_tile();
  if (P::kDivides && a_.division.divides() && (!P::kJoins || role_ != kAlone)) {
    // All logits of a part may be -infinity; others of the tile's decide. Its output is 0, or NaN
    // where values are not finite. (With lazy softmax a sum of 0 says nothing yet.)
#pragma unroll
    for (float& inverse : ended_.inverse) inverse = inverse == INFINITY ? 1 : inverse;
  }
  if constexpr (P::kJoins) join(ended_);
  store(ended_);
  flush_store();
}

// What the producer set aside of the block.
template <class P>
__device__ __forceinline__ void Consumer<P>::take_set_aside() {
  const int place = stage_of(asides_);
  wait(shared_.full_aside[place], parity_of(asides_));
  const auto& aside = shared_.set_aside[place];
  if (aside.in_part != 0) add_set_aside(aside);
  arrive(shared_.empty_aside[place]);
  ++asides_;
}

// Products of a weight of 0 and what is not finite would be NaN, and reach rows that do not see
// the key. Such values are no part of the product; here they come to the rows that do.
template <class P>
__device__ __forceinline__ void Consumer<P>::add_set_aside(
    const typename SharedMemory<P>::SetAside& aside) {
  const int first = block_ * P::kBlockKeys;
  const int seen[2] = {min(visible_[0] - first, P::kBlockKeys),
                       min(visible_[1] - first, P::kBlockKeys)};
#pragma unroll
  for (int i = 0; i < P::kOutputs; ++i) {
    const int column = i / 4 * 8 + first_column() + i % 2;
    if (aside.plus[column] < seen[i / 2 % 2]) out_[i] += INFINITY;
    if (aside.minus[column] < seen[i / 2 % 2]) out_[i] -= INFINITY;
  }
}

}  // namespace batten::impl::native::sm90
