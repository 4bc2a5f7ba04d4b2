// How a consumer's output leaves it.
#pragma once

#include "backends/native/sm90/consumer.cuh"

namespace batten::impl::native::sm90 {

// Divides out_ by the sums and writes it, or leaves it where flush_store() finds it. False, to
// the whole warp, if something of it is not finite. Changes nothing in out_: the compiler must
// see that products of scores, which may be under way, have nothing to wait for.
template <class P>
__device__ __forceinline__ bool Consumer<P>::store(const Ended& ended) {
  bool finite = ended.finite;
  if constexpr (P::kJoins) {
    if (ended.role == kAside) return put_aside(ended);
    if (a_.division.box_log2 != kTileRowsLog2) return __all_sync(~0u, finite & store_boxes(ended));
    store_lse(ended);
  }
  if (a_.output_is_f32 != 0) {
    finite &= store_direct<float>(ended);
  } else if constexpr (!P::kStagesOutput) {
    finite &= store_direct<Element>(ended);
  } else if (shares_its_box(ended.place)) [[unlikely]] {
    // Told so, the compiler keeps more of the exponentials before the wait for values.
    finite &= store_direct<Element>(ended);
  } else {
    finite &= store_rows(ended);
  }
  return __all_sync(~0u, finite);
}

// Elements i and i + 1 of the output, of one row. A row without keys may have met a NaN among the
// values of others.
template <class P>
__device__ __forceinline__ float2 Consumer<P>::divided(const Ended& ended, int i) const {
  const float inverse = ended.inverse[i / 2 % 2];
  return inverse == 0 ? float2{0, 0} : float2{out_[i] * inverse, out_[i + 1] * inverse};
}

// After a packed sample comes the next one.
template <class P>
__device__ __forceinline__ bool Consumer<P>::shares_its_box(const Place& place) const {
  const int first = place.row + group_ * P::kGroupRows + warp() * P::kWarpRows;
  return a_.packed != 0 && first + P::kWarpRows > place.sample_or_end;
}

// Through the warp's own part of shared memory; a tensor map leaves out rows past its end. False
// if something is not finite.
template <class P>
__device__ __forceinline__ bool Consumer<P>::store_rows(const Ended& ended) {
  // The map's last store has read what it stores. (Only the thread that queued it waits for
  // something.)
  cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>{});
  __syncwarp();
  const std::uint32_t live[2] = {ended.inverse[0] == 0 ? 0 : ~0u, ended.inverse[1] == 0 ? 0 : ~0u};
  FiniteCheck<Element> check;
#pragma unroll
  for (int i = 0; i < P::kOutputs / 8; ++i) {
    std::uint32_t blocks[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = 8 * i + 2 * j;
      const float inverse = ended.inverse[j % 2];
      blocks[j] = pack<Element>(out_[at] * inverse, out_[at + 1] * inverse) & live[j % 2];
      check.look_at(blocks[j], j);
    }
    store_blocks(of_sixteen_columns(shared_.out[group_], i), blocks);
  }
  staged_ = ended.place;
  is_staged_ = true;
  return check.all_finite();
}

// Queues what store_rows() has left. The fence takes some hundred cycles, which nobody misses
// once the next products have been issued.
template <class P>
__device__ __forceinline__ void Consumer<P>::flush_store() {
  if constexpr (P::kStagesOutput) {
    if (!is_staged_) return;
    is_staged_ = false;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncwarp();
    const int row = warp() * P::kWarpRows;
    const int first = staged_.row + group_ * P::kGroupRows + row;
    if (lane() == 0 && first < staged_.end(a_)) {
#pragma unroll
      for (int i = 0; i < P::kPanels; ++i) {
        store_box(a_.out, shared_.out[group_].panel[i] + row * kPanelRowBytes,
                  {i * kPanelColumns, staged_.head, first, staged_.sample(a_)});
      }
    }
    cuda::ptx::cp_async_bulk_commit_group();
  }
}

// From registers, two columns at a time; for what cannot go the other way. False if something is
// not finite.
template <class P>
template <class T>
__device__ __forceinline__ bool Consumer<P>::store_direct(const Ended& ended) const {
  float zero = 0;  // NaN once something is not finite
  const int row = ended.place.row + row_in_tile();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= ended.place.end(a_)) continue;
    T* const to = row_of_output<T>(a_, ended.place, row + 8 * r) + first_column();
#pragma unroll
    for (int i = 2 * r; i < P::kOutputs; i += 4) {
      const float2 pair = divided(ended, i);
      zero = fmaf(0, pair.x, fmaf(0, pair.y, zero));
      if constexpr (std::is_same_v<T, float>) {
        *reinterpret_cast<float2*>(to + i / 4 * 8) = pair;
      } else {
        *reinterpret_cast<std::uint32_t*>(to + i / 4 * 8) = pack<T>(pair.x, pair.y);
      }
    }
  }
  return zero == 0;
}

}  // namespace batten::impl::native::sm90
