// What those who compute a tile are told of it.
#pragma once

#include <cstdint>

#include "backends/native/shared/arguments.hpp"

namespace batten::impl::native {

// Where a tile's rows lie in the tensors of queries and output. One number less than one would
// expect: consumers hold two places, and have no register to spare.
struct Place {
  std::int32_t head = 0;
  std::int32_t row = 0;  // the first
  std::int32_t sample_or_end = 0;

  __device__ __forceinline__ int sample(const Arguments& a) const {
    return a.packed != 0 ? 0 : sample_or_end;
  }
  // Of the rows that are the sample's to write: past a sample's queries they are written in a
  // padded batch; in a packed one they are nobody's.
  __device__ __forceinline__ int end(const Arguments& a) const {
    return a.packed != 0 ? sample_or_end : a.max_q;
  }
};

// What a consumer must know of a tile; the query producer leaves it beside the queries. Rows count
// as in the tensor, so that packed samples cost consumers nothing; keys count from the sample's
// first.
struct __align__(16) TileRecord {
  Place place;
  std::int32_t blocks = 0;  // of keys; 0: there are no more tiles
  std::int32_t end_of_queries = 0;
  std::int32_t keys = 0;
  std::int32_t shift =
      0;  // causal: row i sees i + 1 + shift keys; where parts are joined: its Role
  std::int32_t round = 0;  // in which the tile was dealt
};

}  // namespace batten::impl::native
