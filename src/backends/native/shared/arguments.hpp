// What a launch of an sm90 kernel is given: one structure in the kernel's parameters, which a
// captured graph keeps.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/native/limits.hpp"
#include "backends/native/shared/division.hpp"
#include "problem/problem.hpp"

namespace batten::impl::native {

// 0 where all samples (heads) of a tensor lie at one address, else 1: tensor maps know no stride of
// 0, so such a dimension has one entry and the coordinate is multiplied away.
struct Steps {
  std::int32_t sample = 1;
  std::int32_t head = 1;
};

// An array of lengths or offsets of a launch's samples: on the device, or at a position in
// Arguments::numbers, or (null and -1) not given.
struct Array {
  const std::int32_t* device = nullptr;
  std::int32_t position = -1;
};

// A sample of a launch whose tiles are dealt out one by one (order.cu).
struct alignas(16) OrderedSample {
  std::int32_t first_tile = 0;  // counted through all samples
  std::int32_t sample = 0;      // of the call
  std::int32_t queries = 0;
  std::int32_t keys = 0;
  std::int32_t first_row = 0;  // where its queries begin in their tensor
  std::int32_t first_key = 0;
  std::int32_t row_tiles = 1;      // of one head
  std::int32_t section_heads = 1;  // causal: heads whose tiles are mixed
};

// Where samples differ in length, a CTA takes the next tile when it needs one. All in the
// workspace; null where tiles are dealt out in rounds.
struct Deal {
  // In the order in which their tiles are taken, the longest first; one more closes the list.
  OrderedSample* samples = nullptr;
  std::uint32_t* next = nullptr;  // the tile that nobody has taken
  std::int32_t* taken = nullptr;  // by each CTA, kRedoBits of them: its tiles in their order
  std::int32_t count = 0;         // of samples
  std::int32_t cached_keys = 0;   // causal: of one head, with their values in the L2 cache
};

// Where CTAs put parts aside for the CTA that has the tile's first (sm90/join.cuh). All in the
// workspace; each share puts at most one aside. A thread's values stand as it holds them.
struct Join {
  float* parts = nullptr;           // [share, warp, element / 4, lane, 4], divided by their sums
  float* logs = nullptr;            // [share, warp, lane, 2]: of a thread's two rows, base 2
  std::uint64_t* states = nullptr;  // [share, warp]
  // A multiple of 4 that a workspace does not hold by chance: random bits of a plan. What is not
  // this and one of the states (join.cuh) is something else's. States are erased in the end.
  std::uint64_t mark = 0;
};

struct Arguments {
  CUtensorMap q, k, v, out;

  void* output = nullptr;  // what `out` maps; written through it unless it is float32
  std::int32_t output_is_f32 = 0;
  float* lse = nullptr;
  Layout out_layout, lse_layout;

  Array q_lengths, kv_lengths;  // not given: all full
  Array offsets_q, offsets_kv;  // of packed samples

  std::int32_t first_sample = 0;  // of the call, which this launch begins with
  std::int32_t packed = 0;        // samples lie one after another, not max_q and max_kv rows apart
  std::int32_t max_q = 0;         // rows of a sample, at most
  std::int32_t max_kv = 0;
  std::int32_t rows_q = 0;  // of the tensors, counted within a sample of the maps
  std::int32_t rows_kv = 0;
  std::int32_t num_heads = 1;  // of queries
  Divisor heads;               // num_heads
  Divisor group;               // query heads of a key head
  Steps q_steps, k_steps, v_steps;

  // Tiles in the order in which they are dealt out (schedule.cuh).
  std::int32_t tiles = 0;
  std::int32_t row_tiles = 1;  // of one head
  std::int32_t section_heads = 1;
  std::int32_t last_section = 0;
  Divisor per_head;          // row_tiles
  Divisor per_section;       // row_tiles * section_heads
  Divisor heads_of_section;  // section_heads
  Divisor heads_of_last;     // of the last section

  Deal deal;

  // Tiles that are divided: unless parts are joined `output` and `lse` are the workspace then, each
  // part a sample of one head and kTileRows rows.
  Division division;

  float scale_log2 = 0;           // scale * log2(e), never 0
  std::int32_t bottom_right = 0;  // causal: which corner the diagonal ends in
  std::int32_t clear_tail = 0;    // values past a sample's length may be anything: replace them
  std::int32_t online = 0;        // no lazy softmax at all
  std::int32_t redo_shift = 0;    // tiles of a CTA that share a bit of SharedMemory::redo, log2
  // Counts tiles that were computed twice, in device memory, and shows the count to the host.
  unsigned long long* redone = nullptr;
  volatile unsigned long long* redone_on_host = nullptr;

  Join join;

  std::int32_t numbers[kHostNumbers] = {};
};
static_assert(sizeof(Arguments) <= 4096, "what every driver takes as kernel parameters");

}  // namespace batten::impl::native
