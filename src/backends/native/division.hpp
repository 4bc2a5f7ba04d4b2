// Which calls are divided, and into what. Nothing here needs CUDA.
#pragma once

#include <cstdint>
#include <string>

#include "backends/native/shared/division.hpp"
#include "problem/problem.hpp"

namespace batten::impl::native {

// What the busiest multiprocessor does, in steps of a key block.
struct Load {
  double starts = 0;  // tiles or parts
  double blocks = 0;
  double launches = 0;      // of the forward kernel
  double parts_of_cta = 0;  // that it puts aside
  double parts = 0;         // of the whole call; 0: tiles are not divided
};

// How a dense call without a mask (without_idle_mask()) is divided, with what follows from it.
// `keys_of_block`: of a step.
struct DivisionChoice {
  Division division;  // divides(): the call is worth it
  Load load;
};
DivisionChoice choose_division(const Problem& problem, const Shape& shape, const std::string& form,
                               int keys_of_block, int multiprocessors);

// Bytes of scratch for the parts' outputs, and for the logarithms of their sums behind them.
std::size_t part_output_bytes(const Division& division, int head_dim);
std::size_t part_lse_bytes(const Division& division);

}  // namespace batten::impl::native
