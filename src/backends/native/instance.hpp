// A compiled kernel of either family.
#pragma once

#include <string>

#include "problem/problem.hpp"

namespace batten::impl::native {

struct Instance {
  std::string kernel;  // for the receipt
  std::string tile;    // likewise: query rows x keys
  DType dtype = DType::none;
  int head_dim = 0;
  bool causal = false;
  int rows = 0;     // query rows of a tile
  int keys = 0;     // keys of a block
  int columns = 0;  // of a tensor map's box; 0: the kernel takes addresses
  int q_box_rows = 0;
  int out_box_rows = 0;
  int threads = 0;
  int shared_bytes = 0;
  const void* function = nullptr;
  const void* dealing = nullptr;  // for a Deal, if that takes another function
  const void* joining = nullptr;  // for a Join; null: there is none
};

}  // namespace batten::impl::native
