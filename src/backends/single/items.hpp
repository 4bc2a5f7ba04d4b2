// One sample's rows as calls of FlashInfer's kernels, which know two masks only: none, and causal
// aligned bottom-right with at least as many keys as rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "problem/problem.hpp"

namespace batten::impl::single {

// Rows [first_row, first_row + rows) of a sample, on its first `keys` keys. Without keys the rows
// are written 0 and -inf. Causal: the last row sees all the keys, the one before it one fewer, and
// so on.
struct Item {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  bool causal = false;
};

struct Items {
  static constexpr int kMost = 3;
  Item items[kMost] = {};
  int count = 0;

  constexpr void add(std::int64_t first_row, std::int64_t rows, std::int64_t keys, bool causal) {
    if (rows > 0) items[count++] = {first_row, rows, keys, causal};
  }
  constexpr const Item* begin() const { return items; }
  constexpr const Item* end() const { return items + count; }
};

// `rows` rows of the output, of which the first `queries` attend to `keys` keys.
constexpr Items plan_items(Mask mask, std::int64_t queries, std::int64_t keys, std::int64_t rows) {
  Items plan;
  if (keys == 0) queries = 0;
  switch (mask) {
    case Mask::none:
      plan.add(0, queries, keys, false);
      break;
    case Mask::causal: {
      // Rows before all keys see none; the rest is a square.
      const std::int64_t blind = std::max<std::int64_t>(queries - keys, 0);
      plan.add(0, blind, 0, false);
      plan.add(blind, queries - blind, keys, true);
      break;
    }
    case Mask::causal_top_left: {
      // Aligned top-left, the first rows see a square of keys, in which both corners are the same;
      // rows beyond the last key see them all.
      const std::int64_t square = std::min(queries, keys);
      plan.add(0, square, square, true);
      plan.add(square, queries - square, keys, false);
      break;
    }
  }
  plan.add(queries, rows - queries, 0, false);
  return plan;
}

}  // namespace batten::impl::single
