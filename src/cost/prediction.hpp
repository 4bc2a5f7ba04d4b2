// A call's predicted time, and what it is made of.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "cost/card.hpp"
#include "problem/problem.hpp"

namespace batten::impl::cost {

// Blocks of keys are of many widths; counted in this one, what one costs is comparable.
inline constexpr int kUnitKeys = 128;

// What a call asks of a kernel. `starts` to `merges` are those of the busiest multiprocessor,
// summed over launches that follow each other.
struct Work {
  double launches = 1;
  double starts = 0;  // tiles that it begins
  double blocks = 0;  // blocks of keys that it computes, in units of kUnitKeys
  double parts = 0;   // parts of divided tiles that it puts aside
  double merges = 0;  // parts that it merges
  double flops = 0;   // of the whole call
  double bytes = 0;   // likewise, from and to memory
};

struct Term {
  const char* name = "";  // "launches", "tiles", "key blocks", ...
  double count = 0;
  double unit_us = 0;

  double us() const noexcept { return count * unit_us; }
};

// Launches, and the larger of: what tiles and parts take, which the power limit draws out, and the
// time of the memory with what is done with parts after it.
struct Prediction {
  double us = 0;
  std::string kernel;  // whose constants
  int head_dim = 0;    // likewise
  bool causal = false;
  const char* form = "";  // of the backend, which does the same when named; empty: none
  Origin origin = Origin::estimated;
  bool exact = false;  // this very call was measured, the terms did not decide
  bool usual = true;   // of the kernels that the card has by itself: what was measured is of them
  std::array<Term, 5> terms;
  double power_us = 0;          // of the tiles under the power limit; 0: it does not reach them
  double memory_us = 0;         // the bytes at the memory's speed; 0: no limit known
  const char* bound = "tiles";  // what decides: "tiles", "power" or "memory"

  std::string kernel_text() const { return kernel_name(kernel, head_dim, causal); }
};

// How much of the way to the power limit a call of so many microseconds goes, 0 to 1: the limit
// acts on the mean of milliseconds, so that short calls are done before it does.
double power_share(double us) noexcept;

// The time of `work` on a kernel with these constants.
Prediction predict(const Card::Entry& entry, const Work& work);

// What predictions know of a call's samples: without the lengths' values, the bounds; of packed
// calls the mean, which their buffers give.
struct Lengths {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};
Lengths lengths_of(const Shape& shape) noexcept;

// 4·B·Sq·Skv·Hq·D, of the keys that are seen; and the bytes of inputs and output.
double flops_of(const Problem& problem, const Shape& shape) noexcept;
double bytes_of(const Problem& problem, const Shape& shape) noexcept;

// Blocks of `block_keys` keys that the tile of rows [first, first + rows) sees.
std::int64_t blocks_of_tile(Mask mask, std::int64_t first, std::int64_t rows,
                            const Lengths& lengths, int block_keys) noexcept;

// Tiles that are dealt out whole: each of `heads` heads (of all samples) has tiles of `tile_rows`
// queries, which walk over blocks of `block_keys` keys. Blocks in units of kUnitKeys.
struct Grid {
  double tiles = 0;
  double blocks = 0;          // of all tiles
  double longest = 0;         // blocks of one tile
  double busiest_starts = 0;  // of the multiprocessor that ends last
  double busiest_blocks = 0;
};
Grid grid_of(Mask mask, const Lengths& lengths, std::int64_t heads, int tile_rows, int block_keys,
             int multiprocessors) noexcept;

// The call as the table of measured shapes names it; nothing where it holds no such calls: packed
// ones, and those with lengths.
std::optional<MeasuredShape> measured_shape(const Problem& problem, const Shape& shape) noexcept;

}  // namespace batten::impl::cost
