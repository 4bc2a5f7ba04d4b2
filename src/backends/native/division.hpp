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
  double cache_bytes = 0;   // keys and values that tiles may read at different times
};

// From measurements on an H200 (docs/kernels/sm90.md and sm80.md, "Divided tiles").
constexpr Workers sm90_workers(int multiprocessors) {
  return {.ctas = multiprocessors,
          .multiprocessors = multiprocessors,
          .start = 4.2,
          .launch = 5,
          .combine = 4,
          .part_read = 0.011,
          .cache_bytes = 40 << 20};
}
// A CTA alone waits for its copies; the shorter its steps, the longer.
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
          .cache_bytes = 160 << 20};
}

// What the busiest CTA does, in steps of a key block.
struct Load {
  double starts = 0;  // tiles or parts
  double blocks = 0;
  double launches = 0;      // of the forward kernel
  double parts_of_cta = 0;  // that it puts aside
  double parts = 0;         // of the whole call; 0: tiles are not divided
};

// How a dense call without a mask (without_idle_mask()) is divided, with what follows from it.
struct DivisionChoice {
  Division division;  // divides(): the call is worth it
  Load load;
};
DivisionChoice choose_division(const Problem& problem, const Shape& shape, const std::string& form,
                               int keys_of_block, const Workers& workers);

// Bytes of scratch for the parts' outputs, and for the logarithms of their sums behind them.
std::size_t part_output_bytes(const Division& division, int head_dim);
std::size_t part_lse_bytes(const Division& division);

}  // namespace batten::impl::native
