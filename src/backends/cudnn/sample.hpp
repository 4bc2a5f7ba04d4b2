// What cuDNN is told of each sample, and which rows of the output it does not write. The device
// kernels and the tests share this arithmetic; all of it is in 64 bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "problem/problem.hpp"

namespace batten::impl::cudnn {

// An array of lengths or offsets, or a piece of one that begins at sample `first`.
struct Array {
  const std::int32_t* data = nullptr;
  std::int64_t first = 0;

  constexpr explicit operator bool() const noexcept { return data != nullptr; }
  constexpr std::int64_t operator[](std::int64_t i) const noexcept { return data[i - first]; }
};

struct Arrays {
  Array q_lengths, kv_lengths, offsets_q, offsets_kv;
};

// The call, as the kernels need it.
struct Batch {
  std::int64_t size = 0;
  std::int64_t max_q = 0;
  std::int64_t max_kv = 0;
  std::int64_t tokens_q = 0;
  std::int64_t tokens_kv = 0;
  std::int32_t num_heads = 0;
  std::int32_t head_dim_v = 0;
  std::int32_t row_bytes = 0;  // of one head of the output
  bool packed = false;         // the call's tensors, not cuDNN's form
  Mask mask = Mask::none;
  Layout q, k, v, out, lse;
};

constexpr Batch batch_of(const Problem& p, const Shape& s) noexcept {
  Batch b;
  b.size = s.batch;
  b.max_q = s.max_q;
  b.max_kv = s.max_kv;
  b.tokens_q = s.tokens_q;
  b.tokens_kv = s.tokens_kv;
  b.num_heads = p.num_heads;
  b.head_dim_v = p.head_dim_v;
  b.row_bytes = p.head_dim_v * static_cast<std::int32_t>(size_of(p.out_dtype));
  b.packed = s.packed;
  b.mask = p.mask;
  b.q = s.q;
  b.k = s.k;
  b.v = s.v;
  b.out = s.out;
  b.lse = s.lse_layout;
  return b;
}

// Elements from a tensor's base to a row: of the sample (BSHD) or of the buffer (packed, where the
// batch stride is 0).
constexpr std::int64_t offset_of(const Layout& layout, std::int64_t b, std::int64_t row) noexcept {
  return b * layout.batch + row * layout.row;
}

// Rows [begin, begin + count) of a tensor.
struct Rows {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// One sample, after the mask's rules. cuDNN computes queries x keys. The sample's other output rows
// see no key: [rows.begin, queries.begin) and from the end of `queries` to the end of `rows`.
struct Work {
  Rows rows;     // of the output, that are the sample's
  Rows queries;  // within `rows`; none if the sample has no key
  Rows keys;     // never none: cuDNN before 9.25 is wrong on empty samples
};

constexpr Rows rows_of(bool packed, const Array& offsets, std::int64_t b, std::int64_t tokens,
                       std::int64_t bound) noexcept {
  if (!packed) return {0, bound};
  const auto begin = std::clamp<std::int64_t>(offsets[b], 0, tokens);
  const auto end = std::clamp<std::int64_t>(offsets[b + 1], begin, tokens);
  return {begin, std::min(end - begin, bound)};
}

constexpr std::int64_t clamped(const Array& lengths, std::int64_t b, std::int64_t count) noexcept {
  return lengths ? std::clamp<std::int64_t>(lengths[b], 0, count) : count;
}

// `kv_lengths` and offsets may hold anything: what comes out lies within the buffers.
constexpr Work work_of(const Batch& batch, const Arrays& arrays, std::int64_t b) noexcept {
  Work w;
  w.rows = rows_of(batch.packed, arrays.offsets_q, b, batch.tokens_q, batch.max_q);
  w.keys = rows_of(batch.packed, arrays.offsets_kv, b, batch.tokens_kv, batch.max_kv);
  w.queries = {w.rows.begin, clamped(arrays.q_lengths, b, w.rows.count)};
  w.keys.count = clamped(arrays.kv_lengths, b, w.keys.count);
  // What lies between two samples of a packed call is nobody's.
  if (batch.packed) w.rows.count = w.queries.count;

  if (batch.mask == Mask::causal_top_left) {
    // Keys past the last query are never seen.
    w.keys.count = std::min(w.keys.count, w.queries.count);
  }
  if (batch.mask == Mask::causal && w.queries.count > w.keys.count) {
    // The first rows see nothing; a square is left.
    w.queries.begin += w.queries.count - w.keys.count;
    w.queries.count = w.keys.count;
  }
  if (w.queries.count == 0 || w.keys.count == 0) {
    w.queries = {w.rows.begin, 0};
    // One key that exists, for a sample without queries. (A call without any key never gets here.)
    const std::int64_t last = (batch.packed ? batch.tokens_kv : batch.max_kv) - 1;
    w.keys = {std::clamp<std::int64_t>(w.keys.begin, 0, std::max<std::int64_t>(last, 0)), 1};
  }
  return w;
}

// The end of a tensor in elements: the entry that closes an array of element offsets. The end of
// the buffer, not of the last sample, because offsets from the device may be in any order.
constexpr std::int64_t end_of(const Batch& batch, const Layout& layout, std::int64_t tokens,
                              std::int64_t rows) noexcept {
  return batch.packed ? tokens * layout.row : offset_of(layout, batch.size - 1, rows);
}

// Where a plan keeps what cuDNN reads of each sample, in bytes from the workspace's base.
struct WorkspaceLayout {
  std::int64_t lengths_q = 0;   // int32 [B]
  std::int64_t lengths_kv = 0;  // int32 [B]
  std::int64_t offsets = 0;     // five int64 [B + 1]: q, k, v, out, lse
  std::int64_t offsets_stride = 0;
  std::int64_t library = 0;  // cuDNN's own scratch
  std::int64_t size = 0;
};

constexpr WorkspaceLayout workspace_layout(std::int64_t batch, bool with_lengths, bool with_offsets,
                                           std::int64_t library_bytes) noexcept {
  constexpr std::int64_t kAlignment = 256;
  const auto aligned = [](std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  WorkspaceLayout w;
  std::int64_t end = 0;
  if (with_lengths) {
    w.lengths_q = end;
    w.lengths_kv = w.lengths_q + aligned(4 * batch);
    end = w.lengths_kv + aligned(4 * batch);
  }
  if (with_offsets) {
    w.offsets = end;
    w.offsets_stride = aligned(8 * (batch + 1));
    end += 5 * w.offsets_stride;
  }
  w.library = end;
  w.size = end + library_bytes;
  return w;
}

}  // namespace batten::impl::cudnn
