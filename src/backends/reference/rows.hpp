// One row of the output: the attention of one query of one head.
#pragma once

#include <cstdint>

#include "problem/problem.hpp"

namespace batten::impl {

struct RowCall {
  int head_dim = 0;
  int head_dim_v = 0;
  Mask mask = Mask::none;
  double scale = 0;
  std::int64_t i = 0;  // the query within its sample; at or past q_length it attends to nothing
  std::int64_t q_length = 0;
  std::int64_t kv_length = 0;

  // Tensors, the element at which the row (of k and v: the sample's head) begins, and the elements
  // from one key to the next.
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  std::int64_t q_first = 0, k_first = 0, v_first = 0, out_first = 0;
  std::int64_t k_stride = 0, v_stride = 0;
  float* lse = nullptr;  // or null
};

// The row's function for the problem's element types, in two formulations that share nothing.
using RowFunction = void (*)(const RowCall&);
RowFunction row_function_two_pass(const Problem& problem);
RowFunction row_function_online(const Problem& problem);

}  // namespace batten::impl
