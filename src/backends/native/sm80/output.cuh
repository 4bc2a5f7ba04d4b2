// How a tile's output leaves.
#pragma once

#include "backends/native/sm80/tile.cuh"

namespace batten::impl::native::sm80 {

template <class P>
class Output : public Tile<P> {
 public:
  using Tile<P>::Tile;

  // Writes what was computed. False if something of it is not finite.
  template <Softmax softmax>
  __device__ __forceinline__ bool store() {
    const TileRecord& tile = this->shared_.current.tile;
    if constexpr (P::kSides > 1) {
      this->show_rows(0, [&](int t, int r) { return row_sum(sums_[t][r]); });
      pair_barrier(this->group());
    }
    OfRows inverses;
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) inverses[t][r] = end_row<softmax>(tile, t, r);
    }
    return a_.output_is_f32 != 0 ? write_f32(tile, inverses) : write_rows(tile, inverses);
  }

 private:
  using typename Tile<P>::Element;
  using Tile<P>::a_;
  using Tile<P>::kEights;
  using Tile<P>::lane;
  using typename Tile<P>::OfRows;
  using Tile<P>::out_;
  using Tile<P>::references_;
  using Tile<P>::row_in_tile;
  using Tile<P>::sums_;

  // The warp's first.
  __device__ __forceinline__ int warp_column() const {
    return P::kSides > 1 ? here(this->side()) * P::kWarpColumns : 0;
  }

  // Of all of a row's weights.
  __device__ __forceinline__ float sum_of(int t, int r) {
    if constexpr (P::kSides > 1) {
      return this->shown(0, 0, t, r) + this->shown(0, 1, t, r);
    } else {
      return row_sum(sums_[t][r]);
    }
  }

  // What the row's output is to be multiplied by. 0: the output is 0; NaN: the sum has left the
  // range. Writes the logarithm of the sum.
  template <Softmax softmax>
  __device__ __forceinline__ float end_row(const TileRecord& tile, int t, int r) {
    const int in_tile = row_in_tile(t, r);
    const float sum = sum_of(t, r);
    const bool live = this->visible_keys(tile, in_tile, 0) > 0;
    const int row = tile.place.row + in_tile;
    if (lane() % 4 == 0 && this->side() == 0 && a_.lse != nullptr && row < tile.place.end(a_)) {
      constexpr float kLn2 = 0.693147181f;
      *lse_of_row(a_, tile.place, row) =
          live ? fmaf(references_[t][r], kLn2, __logf(sum)) : -INFINITY;
    }
    if (!live) return 0;
    // All logits of a part may be -infinity; others of the tile's decide. Its output is 0, or NaN
    // where values are not finite. (With lazy softmax a sum of 0 says nothing yet.)
    if (softmax == Softmax::online && sum == 0 && a_.division.divides()) return 1;
    // Beyond 2^126 the reciprocal would be subnormal.
    return sum < 0x1p126f ? __fdividef(1, sum) : NAN;
  }

  // Through the memory of the rows' queries: as they stand in registers, rows would leave in pieces
  // of 16 bytes. Nobody reads those queries any more, and no others come: CTAs that go from tile to
  // tile put parts aside, in fp32.
  __device__ __forceinline__ bool write_rows(const TileRecord& tile, const OfRows& inverses) {
    clear_rows_without_keys(inverses);
    const int first_chunk = warp_column() / 8;
    const std::uint32_t rows =
        shared_address(this->shared_.q) + here(this->group()) * (P::kWarpRows * P::kRowBytes);
    const std::uint32_t to = rows + offset_of<P>(lane() / 4, first_chunk) + lane() % 4 * 4;
    FiniteCheck<Element> check;
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float inverse = inverses[t][r];
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          const float(&pair)[4] = out_[t][n];
          const std::uint32_t packed =
              pack<Element>(pair[2 * r] * inverse, pair[2 * r + 1] * inverse);
          check.look_at(packed, n);
          store_word((rows_further<P>(16 * t + 8 * r) + chunks_further<P>(n)).from(to), packed);
        }
      }
    }
    __syncwarp();
    copy_rows_out(tile, rows);
    return check.all_finite();
  }

  // A few lanes each row.
  __device__ __forceinline__ void copy_rows_out(const TileRecord& tile, std::uint32_t rows) const {
    constexpr int kLanes = kBanks<P>;
    constexpr int kRows = 32 / kLanes;  // of a pass
    const int row = lane() / kLanes;
    const int chunk = warp_column() / 8 + lane() % kLanes;
    const int first = tile.place.row + this->group() * P::kWarpRows + row;
    const int left = tile.place.end(a_) - first;
    const std::uint32_t from = rows + offset_of<P>(row, chunk);
    Element* to = row_of_output<Element>(a_, tile.place, first) + chunk * 8;
    // As a loop it takes fewer registers, of which pairs have none to spare on sm_80.
    constexpr int kAtATime = P::kSides > 1 ? 1 : P::kWarpRows / kRows;
#pragma unroll kAtATime
    for (int r = 0; r < P::kWarpRows; r += kRows) {
#pragma unroll
      for (int c = 0; c < P::kWarpColumns / 8; c += kLanes) {
        const uint4 words = load_words((rows_further<P>(r) + chunks_further<P>(c)).from(from));
        if (r < left) write_words(to + c * 8, words);
      }
      to += a_.out_layout.row * kRows;
    }
  }

  // Their output is 0, whatever has been added up.
  __device__ __forceinline__ void clear_rows_without_keys(const OfRows& inverses) {
    bool some = false;
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) some |= inverses[t][0] == 0 || inverses[t][1] == 0;
    if (!__any_sync(~0u, some)) return;
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (inverses[t][i / 2] == 0) out_[t][n][i] = 0;
        }
      }
    }
  }

  __device__ __forceinline__ bool write_f32(const TileRecord& tile, const OfRows& inverses) {
    clear_rows_without_keys(inverses);
    float zero = 0;  // NaN once something is not finite
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float inverse = inverses[t][r];
        const int row = tile.place.row + row_in_tile(t, r);
        const bool exists = row < tile.place.end(a_);
        float* const to =
            row_of_output<float>(a_, tile.place, row) + warp_column() + lane() % 4 * 2;
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          const float2 pair = {out_[t][n][2 * r] * inverse, out_[t][n][2 * r + 1] * inverse};
          zero = fmaf(0, pair.x, fmaf(0, pair.y, zero));
          if (exists) *reinterpret_cast<float2*>(to + 8 * n) = pair;
        }
      }
    }
    return zero == 0;
  }
};

}  // namespace batten::impl::native::sm80
