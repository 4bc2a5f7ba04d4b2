// Which calls are divided, and into what. Nothing here needs CUDA.
#pragma once

#include <cstdint>
#include <string>

#include "backends/native/shared/division.hpp"
#include "problem/problem.hpp"

namespace batten::impl::native {

// Who computes a call's tiles, and what that takes beside the steps of their blocks: in steps of
// 128 keys at head dim 128, as long as they last for a CTA that shares its multiprocessor.
struct Workers {
  int ctas = 0;             // at a time
  int multiprocessors = 0;  // that they share
  double alone = 1;         // a step of a CTA that has its multiprocessor for itself
  double start = 0;         // a CTA's next tile or part, what it writes included
  double launch = 0;        // divided tiles after a launch of whole ones
  double combine = 0;       // a share's first part, and the launch that puts parts together
  double part_read = 0;     // each part of all
  bool can_join = false;    // a kernel has the CTA with a tile's first part add the others
  double join_step = 1;     // there: a step
  double join_start = 0;    // there, and where tiles are whole: a CTA's next tile or part
  double join = 0;          // the first part that is added
  double join_next = 0;     // each further one
  double cache_bytes = 0;   // keys and values that tiles may read at different times
  double step_bytes = 0;    // of them that memory brings in a step, to all CTAs together
};

// From measurements on an H200 (docs/kernels/sm90.md and sm80.md, "Divided tiles").
constexpr Workers sm90_workers(int multiprocessors, bool can_join = false) {
  return {.ctas = multiprocessors,
          .multiprocessors = multiprocessors,
          .start = 4.2,
          .launch = 5,
          .combine = 4,
          .part_read = 0.011,
          .can_join = can_join,
          .join_step = 1.05,  // what long parts lose to a second launch; why was not taken apart
          .join_start = 0.7,
          .join = 2,
          .join_next = 1.3,
          .cache_bytes = 40 << 20,
          .step_bytes = 5.3e6};
}
// A CTA alone waits for its copies: the longer, it is assumed, the shorter its steps.
constexpr Workers sm80_workers(int multiprocessors, int ctas_of_each, int keys_of_block) {
  return {.ctas = multiprocessors * ctas_of_each,
          .multiprocessors = multiprocessors,
          .alone = ctas_of_each == 1    ? 1
                   : keys_of_block < 64 ? 0.92
                                        : 0.65,
          .start = 1.2,
          .launch = 0.5,
          .combine = 2.2,
          .part_read = 0.0045,
          // Steps are four times as long, and memory as fast.
          .cache_bytes = 160 << 20,
          .step_bytes = 23e6};
}

// What the busiest CTA does, in steps of a key block.
struct Load {
  double starts = 0;  // tiles or parts
  double blocks = 0;
  double launches = 0;      // of the forward kernel
  double parts_of_cta = 0;  // that it puts aside
  double parts = 0;         // of the whole call; 0: tiles are not divided
  double joined = 0;  // parts that the busiest CTA adds to its own; 0: another launch does that
};

// The tiles of a dense call without a mask, with heads that share keys in one tile where a sample
// has few queries; not divided yet, though it has their blocks.
Division tiles_of(const Problem& problem, const Shape& shape, int keys_of_block);

// How a dense call without a mask (without_idle_mask()) is divided, with what follows from it.
struct DivisionChoice {
  Division division;  // divides(): the call is worth it
  Load load;
  bool joins = false;  // one launch does all
};
DivisionChoice choose_division(const Problem& problem, const Shape& shape, const std::string& form,
                               int keys_of_block, const Workers& workers);

// Bytes of scratch for the parts' outputs, and for the logarithms of their sums behind them.
std::size_t part_output_bytes(const Division& division, int head_dim);
std::size_t part_lse_bytes(const Division& division);

// The same where parts are joined: outputs, logarithms and states of a part for each share.
struct JoinBytes {
  std::size_t parts = 0;
  std::size_t logs = 0;
  std::size_t states = 0;
  std::size_t all() const { return parts + logs + states; }
};
JoinBytes join_bytes(const Division& division, int head_dim);

}  // namespace batten::impl::native
