// Copies to shared memory, 16 bytes a thread at a time.
//
// As many lanes copy a row together as its chunks are spread over banks. So the other chunks of a
// lane, and its other rows, lie at distances that the instructions hold.
#pragma once

#include "backends/native/sm80/dealer.cuh"

namespace batten::impl::native::sm80 {

// A block of keys or values, for the whole CTA, in passes that may be apart. Zeros come for keys
// that are not there, whatever there is in memory: a weight of 0 would not undo a NaN.
template <class P>
class BlockCopy {
 public:
  static constexpr int kPasses = P::kBlockKeys * P::kChunks / P::kThreads;

  // `keys` are left in the sample from the block's first on, which begins at `from`.
  __device__ __forceinline__ BlockCopy(std::uint8_t* to, const std::uint8_t* from,
                                       std::int64_t row_bytes, int keys, bool exchanged) {
    const auto thread = static_cast<unsigned>(here(static_cast<int>(threadIdx.x)));
    const int row = static_cast<int>(thread / kLanes);
    const int chunk = static_cast<int>(thread % kLanes);
    to_ = shared_address(to) + offset_of<P>(row, chunk, exchanged);
    from_ = from + row * row_bytes + chunk * 16;
    step_ = row_bytes * kRows;
    keys_ = keys - row;
  }

  // The i-th; each once, in their order.
  __device__ __forceinline__ void pass(int i) {
    constexpr int kOfRow = P::kChunks / kLanes;
    const int row = i / kOfRow * kRows;
    const int distance = i % kOfRow * kLanes * 16;
    if (i > 0 && distance == 0) from_ += step_;
    copy_async(to_ + row * P::kRowBytes + distance, from_ + distance, row < keys_);
  }

  __device__ __forceinline__ void all() {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) pass(i);
  }

  // What is due beside the i-th of so many fragments. After half of them all are under way.
  __device__ __forceinline__ void beside(int i, int fragments) {
    const auto due = [&](int before) {
      const int passes = before * 2 * kPasses / fragments;
      return min((passes + kAtATime - 1) / kAtATime * kAtATime, kPasses);
    };
#pragma unroll
    for (int n = due(i); n < due(i + 1); ++n) pass(n);
  }

 private:
  static constexpr int kLanes = kBanks<P>;
  static constexpr int kRows = P::kThreads / kLanes;  // of a pass
  // Before a copy that follows a load from shared memory the compiler puts three instructions that
  // do nothing, and none before one that follows a copy. Where a warp copies 32 bytes each of 16
  // rows (head dim 80) two in a row are slower all the same.
  static constexpr int kAtATime = kLanes > 2 ? 2 : 1;
  static_assert(kRows % 16 == 0 && P::kBlockKeys % kRows == 0, "rows at the same distances");

  std::uint32_t to_;
  const std::uint8_t* from_;
  std::int64_t step_;
  int keys_;
};

// A warp's share of the rows of a tile's queries. Zeros for rows that are not there.
template <class P>
__device__ __forceinline__ void copy_queries(std::uint8_t* to, const Arguments& a,
                                             const Source& source, int warp) {
  constexpr int kLanes = kBanks<P>;
  constexpr int kRows = 32 / kLanes;  // of a pass
  constexpr int kShare = P::kTileRows / P::kWarps;
  const int lane = here(static_cast<int>(threadIdx.x)) % 32;
  const int chunk = lane % kLanes;
  const int first = warp * kShare;
  const int head = first >> source.box_log2;
  const Layout& layout = a.operands[kQueries].layout;
  const std::int64_t row_bytes = layout.row * 2;
  const std::int64_t head_bytes = layout.head * 2;
  const std::uint8_t* const begin = source.begin[kQueries] + chunk * 16;
  const std::uint32_t base = shared_address(to) + first * P::kRowBytes;
  const auto copy_row = [&](std::uint32_t at, const std::uint8_t* from, bool exists) {
#pragma unroll
    for (int c = 0; c < P::kRowBytes; c += kLanes * 16) copy_async(at + c, from + c, exists);
  };
  if (kShare >> source.box_log2 <= 1) {
    // All are of one head: what is to be computed for each is an addition.
    const int row = first - (head << source.box_log2) + lane / kLanes;
    const int rows = head < source.heads ? source.rows - row : 0;
    const std::uint8_t* from = begin + row * row_bytes + head * head_bytes;
    const std::uint32_t at = base + offset_of<P>(lane / kLanes, chunk, true);
#pragma unroll
    for (int r = 0; r < kShare; r += kRows) {
      copy_row(rows_further<P>(r, true).from(at), from, r < rows);
      from += row_bytes * kRows;
    }
    return;
  }
#pragma unroll 1
  for (int r = lane / kLanes; r < kShare; r += kRows) {
    const int of_head = (first + r) >> source.box_log2;
    const int row = first + r - (of_head << source.box_log2);
    copy_row(base + offset_of<P>(r, chunk, true), begin + row * row_bytes + of_head * head_bytes,
             of_head < source.heads && row < source.rows);
  }
}

}  // namespace batten::impl::native::sm80
