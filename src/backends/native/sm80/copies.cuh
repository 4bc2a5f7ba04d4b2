// Copies to shared memory, 16 bytes a thread at a time.
#pragma once

#include "backends/native/sm80/dealer.cuh"

namespace batten::impl::native::sm80 {

// Lanes that copy a row; where they are more than its chunks, the last ones copy nothing.
template <class P>
inline constexpr int kLanesOfRow = P::kChunks <= 8    ? 8
                                   : P::kChunks <= 16 ? 16
                                                      : 32;

// A block of keys or values, for the whole CTA. `keys` are left in the sample from the block's
// first on; zeros come for what follows them, whatever there is in memory: a weight of 0 would not
// undo a NaN.
template <class P>
__device__ __forceinline__ void copy_block(std::uint8_t* to, const std::uint8_t* from,
                                           std::int64_t row_bytes, int keys, bool exchanged) {
  constexpr int kLanes = kLanesOfRow<P>;
  constexpr int kRows = P::kThreads / kLanes;  // of one pass
  static_assert(P::kBlockKeys % kRows == 0);
  const auto thread = static_cast<unsigned>(here(static_cast<int>(threadIdx.x)));
  const int row = static_cast<int>(thread / kLanes);
  const int chunk = static_cast<int>(thread % kLanes);
  if (kLanes > P::kChunks && chunk >= P::kChunks) return;
  from += row * row_bytes + chunk * 16;
  const std::uint32_t base = shared_address(to);
  const std::int64_t step = row_bytes * kRows;
  // Rows 16 further lie at an offset that does not depend on the row.
  constexpr int kPeriod = kRows >= 16 ? 1 : 16 / kRows;
  static_assert(16 % kRows == 0 || kRows % 16 == 0);
  std::uint32_t at[kPeriod];
#pragma unroll
  for (int i = 0; i < kPeriod; ++i) at[i] = base + offset_of<P>(row + i * kRows, chunk, exchanged);
#pragma unroll
  for (int i = 0; i < P::kBlockKeys / kRows; ++i) {
    copy_async(at[i % kPeriod] + i / kPeriod * kPeriod * kRows * P::kRowBytes, from,
               i * kRows < keys - row);
    from += step;
  }
}

// A warp's rows of a tile's queries, by itself. Zeros for rows that are not there.
template <class P>
__device__ __forceinline__ void copy_queries(std::uint8_t* to, const Arguments& a,
                                             const Source& source, int warp) {
  constexpr int kLanes = kLanesOfRow<P>;
  constexpr int kRows = 32 / kLanes;
  const int lane = here(static_cast<int>(threadIdx.x)) % 32;
  const int chunk = lane % kLanes;
  if (kLanes > P::kChunks && chunk >= P::kChunks) return;
  const int box_log2 = source.box_log2;
  const std::int64_t row_bytes = a.queries.layout.row * 2;
  const std::int64_t head_bytes = a.queries.layout.head * 2;
  const std::uint8_t* const begin = source.queries + chunk * 16;
  const std::uint32_t base = shared_address(to);
#pragma unroll 4
  for (int first = 0; first < P::kWarpRows; first += kRows) {
    const int r = warp * P::kWarpRows + first + lane / kLanes;
    const int head = r >> box_log2;
    const int row = r - (head << box_log2);
    copy_async(base + offset_of<P>(r, chunk, true), begin + row * row_bytes + head * head_bytes,
               head < source.heads && row < source.rows);
  }
}

}  // namespace batten::impl::native::sm80
