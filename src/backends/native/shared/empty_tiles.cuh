// Tiles in which there is nothing to compute.
#pragma once

#include "backends/native/shared/schedule.cuh"

namespace batten::impl::native {

// Writes the tiles whose rows see no key. For one whole warp.
template <class P>
__device__ __forceinline__ void write_empty_tiles(const Arguments& a) {
  const int lane = threadIdx.x % 32;
  const int vectors = P::kHeadDim * (a.output_is_f32 != 0 ? 4 : 2) / 16;
  if (a.division.divides()) return;  // every part has keys
  Schedule<P> schedule;
  Piece piece;
  while (schedule.next(a, piece)) {
    if (piece.extent.blocks > 0) continue;
    const Place place = place_of(a, piece.tile, piece.extent);
    const int end = min(place.row + P::kTileRows, place.end(a));
    for (int row = place.row; row < end; ++row) {
      int4* const out = reinterpret_cast<int4*>(
          a.output_is_f32 != 0 ? static_cast<void*>(row_of_output<float>(a, place, row))
                               : row_of_output<typename P::Element>(a, place, row));
      for (int i = lane; i < vectors; i += 32) out[i] = int4{0, 0, 0, 0};
      if (lane == 0 && a.lse != nullptr) *lse_of_row(a, place, row) = -INFINITY;
    }
  }
}

}  // namespace batten::impl::native
