// Tiles in which there is nothing to compute.
#pragma once

#include "backends/native/shared/schedule.cuh"

namespace batten::impl::native {

// Whether the kernel is one whose CTAs take tiles one by one. (The sm80 kernels, which all may, do
// without what follows from it.)
template <class P>
constexpr bool only_takes_tiles() {
  if constexpr (requires { P::kDeals; }) return P::kDeals;
  return false;
}

// Writes a row. For one whole warp.
template <class P>
__device__ __forceinline__ void write_empty_row(const Arguments& a, const Place& place, int row,
                                                int lane, int vectors) {
  int4* const out = reinterpret_cast<int4*>(
      a.output_is_f32 != 0 ? static_cast<void*>(row_of_output<float>(a, place, row))
                           : row_of_output<typename P::Element>(a, place, row));
  for (int i = lane; i < vectors; i += 32) out[i] = int4{0, 0, 0, 0};
  if (lane == 0 && a.lse != nullptr) *lse_of_row(a, place, row) = -INFINITY;
}

// Where a sample's rows in empty tiles end; they are its first ones.
template <class P>
__device__ __forceinline__ int end_of_empty_tiles(const Arguments& a, int queries, int keys) {
  if (keys == 0) return queries;
  const int unseeing = P::kCausal && a.bottom_right != 0 ? max(queries - keys, 0) : 0;
  return unseeing / P::kTileRows * P::kTileRows;
}

// The same tiles as below, of packed samples whose tiles are taken one by one: they may be far
// shorter than max_q, and so nothing is looked at but their own rows. CTAs share each head.
template <class P>
__device__ __forceinline__ void write_empty_tiles_of_packed(const Arguments& a, int lane,
                                                            int vectors) {
  constexpr int kSharers = 16;  // of a head
  const int ctas = static_cast<int>(gridDim.x);
  const int pieces = a.deal.count * a.num_heads * kSharers;
  // Each lane looks at a piece; the warp writes those in which there is something to write.
  for (int base = static_cast<int>(blockIdx.x); base < pieces; base += 32 * ctas) {
    const int mine = base + lane * ctas;
    int first_row = 0;
    int end = 0;
    if (mine < pieces) {
      const int4* const entry =
          reinterpret_cast<const int4*>(&a.deal.samples[a.heads.quotient(mine / kSharers)]);
      const int4 sample = __ldcg(entry);
      first_row = __ldcg(entry + 1).x;
      end = end_of_empty_tiles<P>(a, sample.z, sample.w);
    }
    const bool found = mine % kSharers * P::kTileRows < end;
    for (unsigned left = __ballot_sync(~0u, found); left != 0; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      const int piece = base + from * ctas;
      const int head = piece / kSharers;  // counted through all samples
      const Place place{.head = head - a.heads.quotient(head) * a.num_heads,
                        .row = __shfl_sync(~0u, first_row, from)};
      const int rows = __shfl_sync(~0u, end, from);
      for (int tile = piece % kSharers * P::kTileRows; tile < rows;
           tile += kSharers * P::kTileRows) {
        for (int row = tile; row < min(tile + P::kTileRows, rows); ++row)
          write_empty_row<P>(a, place, place.row + row, lane, vectors);
      }
    }
  }
}

// Writes the tiles whose rows see no key. For one whole warp.
template <class P>
__device__ __forceinline__ void write_empty_tiles(const Arguments& a) {
  const int lane = threadIdx.x % 32;
  const int vectors = P::kHeadDim * (a.output_is_f32 != 0 ? 4 : 2) / 16;
  if (a.division.divides()) return;  // every part has keys
  if constexpr (only_takes_tiles<P>()) {
    if (a.packed != 0 && a.deal.samples != nullptr)
      return write_empty_tiles_of_packed<P>(a, lane, vectors);
  }
  Schedule<P> schedule;
  Piece piece;
  while (schedule.next(a, piece)) {
    if (piece.extent.blocks > 0) continue;
    const Place place = place_of(a, piece.tile, piece.extent);
    const int end = min(place.row + P::kTileRows, place.end(a));
    for (int row = place.row; row < end; ++row) write_empty_row<P>(a, place, row, lane, vectors);
  }
}

}  // namespace batten::impl::native
