#include "problem/problem.hpp"

#include <algorithm>

namespace batten::impl {
namespace {

// Rows of sample b within a packed buffer: clamped to it and to the order of the offsets.
struct Rows {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

Rows packed_rows(const std::int32_t* offsets, std::int64_t b, std::int64_t tokens,
                 std::int64_t bound) {
  const auto begin = std::clamp<std::int64_t>(offsets[b], 0, tokens);
  const auto end = std::clamp<std::int64_t>(offsets[b + 1], begin, tokens);
  return {begin, std::min(end - begin, bound)};
}

std::int64_t clamped_length(const std::int32_t* lengths, std::int64_t b, std::int64_t rows) {
  return lengths == nullptr ? rows : std::clamp<std::int64_t>(lengths[b], 0, rows);
}

}  // namespace

Sample sample_of(const Shape& shape, const Call& call, std::int64_t b) {
  Sample s;
  if (shape.packed) {
    const Rows q = packed_rows(call.offsets_q, b, shape.tokens_q, shape.max_q);
    const Rows kv = packed_rows(call.offsets_kv, b, shape.tokens_kv, shape.max_kv);
    s.q_length = clamped_length(call.q_lengths, b, q.count);
    s.q_rows = s.q_length;  // what lies between two samples is a gap, and stays untouched
    s.kv_length = clamped_length(call.kv_lengths, b, kv.count);
    s.q_offset = q.begin * shape.q.row;
    s.out_offset = q.begin * shape.out.row;
    s.lse_offset = q.begin * shape.lse_layout.row;
    s.k_offset = kv.begin * shape.k.row;
    s.v_offset = kv.begin * shape.v.row;
    return s;
  }
  s.q_rows = shape.max_q;
  s.q_length = clamped_length(call.q_lengths, b, shape.max_q);
  s.kv_length = clamped_length(call.kv_lengths, b, shape.max_kv);
  s.q_offset = b * shape.q.batch;
  s.out_offset = b * shape.out.batch;
  s.lse_offset = b * shape.lse_layout.batch;
  s.k_offset = b * shape.k.batch;
  s.v_offset = b * shape.v.batch;
  return s;
}

}  // namespace batten::impl
