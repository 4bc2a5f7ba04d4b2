// How a consumer's output leaves it where parts are joined (join.cuh): each warp for its own 16
// rows of a tile, whoever has the others.
#pragma once

#include "backends/native/sm90/consumer.cuh"

namespace batten::impl::native::sm90 {

// The CTA's; -1: it has none.
template <class P>
__device__ __forceinline__ int Consumer<P>::share() const {
  return Share::number_of(a_.division, static_cast<int>(blockIdx.x));
}

// Where a warp puts its rows of a share's part.
template <class P>
__device__ __forceinline__ int Consumer<P>::slot(int share) const {
  return share * (P::kTileRows / P::kWarpRows) + group_ * (P::kGroupRows / P::kWarpRows) + warp();
}

// Whether someone owns rows of the warp: where heads share a tile, or queries are few, not all do.
template <class P>
__device__ __forceinline__ bool Consumer<P>::has_rows(const Place& place) const {
  return box_row(place, group_ * P::kGroupRows + warp() * P::kWarpRows).is_real;
}

// False, to the whole warp, if something is not finite and will be computed again. What was put
// aside stays as it is: someone may be reading it.
template <class P>
__device__ __forceinline__ bool Consumer<P>::put_aside(const Ended& ended) {
  if (is_put_aside_ || !has_rows(ended.place)) return true;
  const int at = slot(share());
  auto* const to = reinterpret_cast<float4*>(a_.join.parts) + at * (P::kOutputs / 4 * 32) + lane();
  float zero = 0;  // NaN once something is not finite
#pragma unroll
  for (int i = 0; i < P::kOutputs; i += 4) {
    const float2 x = divided(ended, i);
    const float2 y = divided(ended, i + 2);
    zero = fmaf(0, x.x, fmaf(0, x.y, fmaf(0, y.x, fmaf(0, y.y, zero))));
    __stcg(to + i / 4 * 32, float4{x.x, x.y, y.x, y.y});
  }
  __stcg(reinterpret_cast<float2*>(a_.join.logs) + at * 32 + lane(),
         float2{ended.log[0], ended.log[1]});
  is_put_aside_ = second_pass_ || __all_sync(~0u, ended.finite && zero == 0);
  __syncwarp();
  const PartState state = !is_put_aside_ ? kAgain : second_pass_ ? kRedone : kReady;
  if (lane() == 0) set_state(&a_.join.states[at], a_.join.mark | state);
  return is_put_aside_;
}

// Waits for the warp's rows of a share's part. False: they will be computed again.
template <class P>
__device__ __forceinline__ bool Consumer<P>::other_is_ready(int share) const {
  std::uint64_t* const at = &a_.join.states[slot(share)];
  bool is_ready = false;
  if (lane() == 0) {
    std::uint64_t state;
    do {
      state = state_of(at) - a_.join.mark;
    } while (state != kReady && state != kRedone && (second_pass_ || state != kAgain));
    is_ready = second_pass_ || state == kReady;
  }
  __syncwarp();  // a vote orders no memory
  return __any_sync(~0u, is_ready);
}

// Adds the other parts of the tile, if the piece is its first: out_ becomes the mean of all,
// weighed by their sums, in the order of the shares. False, to the whole warp, if one of them will
// be computed again. Nothing is under way.
template <class P>
__device__ __forceinline__ bool Consumer<P>::join(Ended& ended) {
  if (ended.role != kFirst || !has_rows(ended.place)) return true;
  const Others others = others_of(a_.division, share());
#pragma unroll
  for (int i = 0; i < P::kOutputs; ++i) out_[i] *= ended.inverse[i / 2 % 2];
  float sum[2] = {1, 1};  // times 2^log
#pragma unroll 1
  for (int other = others.first; other < others.end; ++other) {
    if (!other_is_ready(other)) return false;
    const int at = slot(other);
    const auto* const from =
        reinterpret_cast<const float4*>(a_.join.parts) + at * (P::kOutputs / 4 * 32) + lane();
    const float2 pair = __ldcg(reinterpret_cast<const float2*>(a_.join.logs) + at * 32 + lane());
    const float log[2] = {pair.x, pair.y};
    float mine[2];
    float theirs[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = fmaxf(ended.log[r], log[r]);
      // Where all logits are -infinity, parts have what 0 divided by 0 is.
      const float base = top == -INFINITY ? 0 : top;
      mine[r] = exp2_fast(ended.log[r] - base);
      theirs[r] = exp2_fast(log[r] - base);
      sum[r] = fmaf(sum[r], mine[r], theirs[r]);
      ended.log[r] = top;
    }
    constexpr int kAtOnce = 8;  // loads on their way
    static_assert(P::kOutputs % (4 * kAtOnce) == 0);
#pragma unroll
    for (int i = 0; i < P::kOutputs; i += 4 * kAtOnce) {
      float4 part[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) part[j] = __ldcg(from + (i / 4 + j) * 32);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        float* const own = out_ + i + 4 * j;
        own[0] = fmaf(part[j].x, theirs[0], own[0] * mine[0]);
        own[1] = fmaf(part[j].y, theirs[0], own[1] * mine[0]);
        own[2] = fmaf(part[j].z, theirs[1], own[2] * mine[1]);
        own[3] = fmaf(part[j].w, theirs[1], own[3] * mine[1]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    ended.inverse[r] = __fdividef(1, sum[r]);
    ended.log[r] += __log2f(sum[r]);
  }
  return true;
}

// All have been read: to the next launch with this workspace they are not there.
template <class P>
__device__ __forceinline__ void Consumer<P>::erase_others() const {
  if (share() < 0) return;
  const Others others = others_of(a_.division, share());
  for (int other = others.first + lane(); other < others.end; other += 32) {
    a_.join.states[slot(other)] = 0;
  }
}

template <class P>
__device__ __forceinline__ void Consumer<P>::store_lse(const Ended& ended) const {
  if (a_.lse == nullptr || lane() % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const BoxRow row = box_row(ended.place, row_in_tile() + 8 * r);
    if (row.is_real) *lse_of_row(a_, row.place, row.place.row) = ended.log[r] * kLn2;
  }
}

// A row of a tile where a tile is made of boxes, one or several (division.hpp).
template <class P>
__device__ __forceinline__ typename Consumer<P>::BoxRow Consumer<P>::box_row(const Place& place,
                                                                             int row) const {
  const Division& d = a_.division;
  const int box = row >> d.box_log2;
  BoxRow at{.place = place};
  at.place.head += box;
  at.place.row += row & ((1 << d.box_log2) - 1);
  const int first = place.head % d.group;  // of the heads that share keys
  at.is_real = at.place.row < a_.max_q && box < d.heads_of_tile && first + box < d.group;
  return at;
}

// From registers, two columns at a time. False if something is not finite.
template <class P>
__device__ __forceinline__ bool Consumer<P>::store_boxes(const Ended& ended) const {
  float zero = 0;  // NaN once something is not finite
  store_lse(ended);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const BoxRow row = box_row(ended.place, row_in_tile() + 8 * r);
    if (!row.is_real) continue;
    auto* const wide = row_of_output<float>(a_, row.place, row.place.row) + first_column();
    auto* const narrow = row_of_output<Element>(a_, row.place, row.place.row) + first_column();
#pragma unroll
    for (int i = 2 * r; i < P::kOutputs; i += 4) {
      const float2 pair = divided(ended, i);
      zero = fmaf(0, pair.x, fmaf(0, pair.y, zero));
      if (a_.output_is_f32 != 0) {
        *reinterpret_cast<float2*>(wide + i / 4 * 8) = pair;
      } else {
        *reinterpret_cast<std::uint32_t*>(narrow + i / 4 * 8) = pack<Element>(pair.x, pair.y);
      }
    }
  }
  return zero == 0;
}

}  // namespace batten::impl::native::sm90
