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
      this->show_rows(0, [&](int t, int r) { return row_sum(sums()[t][r]); });
      pair_barrier(this->group());
    }
    bool finite = true;
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = tile.place.row + row_in_tile(t, r);
        const float inverse = end_row<softmax>(tile, t, r);
        const bool exists = row < tile.place.end(a_);
        finite &= a_.output_is_f32 != 0 ? write_f32(tile, row, exists, t, r, inverse)
                                        : write_row(tile, row, exists, t, r, inverse);
      }
    }
    return finite;
  }

 private:
  using typename Tile<P>::Element;
  using Tile<P>::a_;
  using Tile<P>::kEights;
  using Tile<P>::lane;
  using Tile<P>::out_;
  using Tile<P>::references;
  using Tile<P>::row_in_tile;
  using Tile<P>::sums;

  // Of the warp, and of the thread among the warp's.
  __device__ __forceinline__ int warp_column() const { return this->side() * P::kWarpColumns; }
  static __device__ __forceinline__ int first_column() { return lane() % 4 * 2; }

  // Of all of a row's weights.
  __device__ __forceinline__ float sum_of(int t, int r) {
    if constexpr (P::kSides > 1) {
      return this->shown(0, 0, t, r) + this->shown(0, 1, t, r);
    } else {
      return row_sum(sums()[t][r]);
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
          live ? fmaf(references()[t][r], kLn2, __logf(sum)) : -INFINITY;
    }
    if (!live) return 0;
    // All logits of a part may be -infinity; others of the tile's decide. Its output is 0, or NaN
    // where values are not finite. (With lazy softmax a sum of 0 says nothing yet.)
    if (softmax == Softmax::online && sum == 0 && a_.division.divides()) return 1;
    // Beyond 2^126 the reciprocal would be subnormal.
    return sum < 0x1p126f ? __fdividef(1, sum) : NAN;
  }

  __device__ __forceinline__ bool write_row(const TileRecord& tile, int row, bool exists, int t,
                                            int r, float inverse) const {
    const std::uint32_t live = inverse == 0 ? 0 : ~0u;
    Element* const to = row_of_output<Element>(a_, tile.place, row) + warp_column();
    FiniteCheck<Element> check;
    const auto word = [&](int n) {
      const float(&pair)[4] = out_[t][n];
      const std::uint32_t packed =
          pack<Element>(pair[2 * r] * inverse, pair[2 * r + 1] * inverse) & live;
      check.look_at(packed, n);
      return packed;
    };
    // 32 columns at a time, 16 bytes a thread.
#pragma unroll
    for (int n = 0; n + 4 <= kEights; n += 4) {
      std::uint32_t words[4] = {word(n), word(n + 1), word(n + 2), word(n + 3)};
      exchange_words(words);
      if (exists) {
        *reinterpret_cast<uint4*>(to + 8 * n + lane() % 4 * 8) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
#pragma unroll
    for (int n = kEights / 4 * 4; n < kEights; ++n) {
      const std::uint32_t packed = word(n);
      if (exists) *reinterpret_cast<std::uint32_t*>(to + 8 * n + first_column()) = packed;
    }
    return check.all_finite();
  }

  __device__ __forceinline__ bool write_f32(const TileRecord& tile, int row, bool exists, int t,
                                            int r, float inverse) const {
    float* const to = row_of_output<float>(a_, tile.place, row) + warp_column() + first_column();
    float zero = 0;  // NaN once something is not finite
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const float2 pair = divided(t, n, r, inverse);
      zero = fmaf(0, pair.x, fmaf(0, pair.y, zero));
      if (exists) *reinterpret_cast<float2*>(to + 8 * n) = pair;
    }
    return zero == 0;
  }

  __device__ __forceinline__ float2 divided(int t, int n, int r, float inverse) const {
    if (inverse == 0) return {0, 0};
    return {out_[t][n][2 * r] * inverse, out_[t][n][2 * r + 1] * inverse};
  }
};

}  // namespace batten::impl::native::sm80
