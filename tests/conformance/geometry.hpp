// Which rows of a case's tensors belong to which sample.
#pragma once

#include <cstdint>
#include <vector>

#include "cases.hpp"

namespace batten::conformance {

// Rows count tokens in row-major order: b * Sq + s (BSHD) or t (packed).
struct Sample {
  std::int64_t q_begin = 0;
  std::int64_t q_length = 0;  // rows that attend
  std::int64_t q_rows = 0;    // rows of the output that must be written: BSHD Sq, packed q_length
  std::int64_t kv_begin = 0;
  std::int64_t kv_length = 0;
};

struct Geometry {
  std::int64_t q_rows = 0;   // of the whole buffer
  std::int64_t kv_rows = 0;  // likewise
  std::vector<Sample> samples;
  // What the call passes; empty: nothing.
  std::vector<std::int32_t> q_lengths, kv_lengths, offsets_q, offsets_kv;
  std::int64_t max_q = 0;  // packed; 0: not stated
  std::int64_t max_kv = 0;
};

Geometry geometry_of(const Case& one);

// Keys [0, n) are visible to row `i` of a sample.
std::int64_t visible_keys(Mask mask, std::int64_t i, const Sample& sample) noexcept;

// 4 per query, visible or masked key, head and head dim, as the design counts them.
double flops_of(const Problem& problem, const Geometry& geometry) noexcept;

}  // namespace batten::conformance
