// What the cudnn backend's kernels write for each sample, proven on the host: they share the code.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <vector>

#include "backends/cudnn/kernels.hpp"
#include "backends/cudnn/sample.hpp"

namespace batten::impl::cudnn {
namespace {

Batch packed_batch(Mask mask, std::int64_t size, std::int64_t tokens_q, std::int64_t tokens_kv) {
  Batch b;
  b.size = size;
  b.max_q = tokens_q;
  b.max_kv = tokens_kv;
  b.tokens_q = tokens_q;
  b.tokens_kv = tokens_kv;
  b.num_heads = 2;
  b.packed = true;
  b.mask = mask;
  b.q = b.out = {0, 16, 8};
  b.k = b.v = {0, 16, 8};
  b.lse = {0, 2, 1};
  return b;
}

Batch bshd_batch(Mask mask, std::int64_t size, std::int64_t q, std::int64_t kv) {
  Batch b = packed_batch(mask, size, size * q, size * kv);
  b.packed = false;
  b.max_q = q;
  b.max_kv = kv;
  b.q.batch = b.out.batch = q * 16;
  b.k.batch = b.v.batch = kv * 16;
  b.lse.batch = q * 2;
  return b;
}

void expect_rows(const Rows& rows, std::int64_t begin, std::int64_t count) {
  EXPECT_EQ(rows.begin, begin);
  EXPECT_EQ(rows.count, count);
}

TEST(CudnnSample, PackedSamplesBeginAtTheirOffsets) {
  const std::vector<std::int32_t> q = {0, 3, 10}, kv = {2, 7, 20};
  const Batch batch = packed_batch(Mask::none, 2, 10, 20);
  const Arrays arrays{{}, {}, {q.data()}, {kv.data()}};
  const Work w = work_of(batch, arrays, 1);
  expect_rows(w.rows, 3, 7);
  expect_rows(w.queries, 3, 7);
  expect_rows(w.keys, 7, 13);
}

TEST(CudnnSample, LengthsShortenPackedSamples) {
  const std::vector<std::int32_t> q = {0, 5, 10}, kv = {0, 8, 20}, q_len = {4, 0}, kv_len = {3, 9};
  const Batch batch = packed_batch(Mask::none, 2, 10, 20);
  const Arrays arrays{{q_len.data()}, {kv_len.data()}, {q.data()}, {kv.data()}};
  Work w = work_of(batch, arrays, 0);
  expect_rows(w.rows, 0, 4);  // row 4 is a gap: nobody writes it
  expect_rows(w.queries, 0, 4);
  expect_rows(w.keys, 0, 3);
  w = work_of(batch, arrays, 1);
  expect_rows(w.rows, 5, 0);
  expect_rows(w.queries, 5, 0);
  EXPECT_EQ(w.keys.count, 1);
}

TEST(CudnnSample, RowsPastTheLengthOfBshdSamplesAreTheSamples) {
  const std::vector<std::int32_t> q_len = {3};
  const Work w = work_of(bshd_batch(Mask::none, 1, 8, 5), {{q_len.data()}, {}, {}, {}}, 0);
  expect_rows(w.rows, 0, 8);
  expect_rows(w.queries, 0, 3);
  expect_rows(w.keys, 0, 5);
}

TEST(CudnnSample, BottomRightLeavesTheHeadOut) {
  const std::vector<std::int32_t> q_len = {7}, kv_len = {3};
  const Work w =
      work_of(bshd_batch(Mask::causal, 1, 8, 5), {{q_len.data()}, {kv_len.data()}, {}, {}}, 0);
  expect_rows(w.rows, 0, 8);
  expect_rows(w.queries, 4, 3);  // rows 4, 5, 6 see 1, 2, 3 keys
  expect_rows(w.keys, 0, 3);
}

TEST(CudnnSample, TopLeftNeedsNoKeyPastTheLastQuery) {
  const std::vector<std::int32_t> q_len = {3};
  const Work w =
      work_of(bshd_batch(Mask::causal_top_left, 1, 8, 5), {{q_len.data()}, {}, {}, {}}, 0);
  expect_rows(w.queries, 0, 3);
  expect_rows(w.keys, 0, 3);
}

TEST(CudnnSample, SamplesWithoutKeysGiveOneThatExists) {
  // The empty sample stands at the very end of the buffer.
  const std::vector<std::int32_t> q = {0, 4, 8}, kv = {0, 6, 6};
  const Work w = work_of(packed_batch(Mask::none, 2, 8, 6), {{}, {}, {q.data()}, {kv.data()}}, 1);
  expect_rows(w.rows, 4, 4);
  expect_rows(w.queries, 4, 0);
  expect_rows(w.keys, 5, 1);
}

TEST(CudnnSample, OffsetsPast2To31Elements) {
  Batch batch = packed_batch(Mask::none, 2, 2'000'000'000, 2'000'000'000);
  batch.num_heads = 32;
  batch.q = batch.out = batch.k = batch.v = {0, 32 * 128, 128};
  batch.lse = {0, 32, 1};
  const std::vector<std::int32_t> offsets = {0, 1'900'000'000, 2'000'000'000};
  const Work w = work_of(batch, {{}, {}, {offsets.data()}, {offsets.data()}}, 1);
  EXPECT_EQ(offset_of(batch.q, 1, w.queries.begin), 1'900'000'000LL * 4096);
  EXPECT_EQ(offset_of(batch.k, 1, w.keys.begin), 1'900'000'000LL * 4096);
  EXPECT_EQ(offset_of(batch.lse, 1, w.queries.begin), 1'900'000'000LL * 32);
  EXPECT_EQ(end_of(batch, batch.k, batch.tokens_kv, batch.max_kv), 2'000'000'000LL * 4096);

  Batch bshd = bshd_batch(Mask::none, 3, 1'000'000, 1'000'000);
  bshd.k = {1'000'000LL * 8192, 8192, 128};
  EXPECT_EQ(offset_of(bshd.k, 2, 999'999), (2 * 1'000'000LL + 999'999) * 8192);
  EXPECT_EQ(end_of(bshd, bshd.k, bshd.tokens_kv, bshd.max_kv), 3 * 1'000'000LL * 8192);
}

TEST(CudnnSample, EndOfSharedKeysIsPastTheLastRow) {
  Batch b = bshd_batch(Mask::none, 4, 8, 5);
  b.k.batch = 0;
  EXPECT_EQ(end_of(b, b.k, b.tokens_kv, b.max_kv), 5 * 16);
}

TEST(CudnnSample, PiecesOfArraysCountFromTheirFirstSample) {
  const std::vector<std::int32_t> whole = {0, 3, 10, 12, 20};
  const Batch batch = packed_batch(Mask::none, 4, 20, 20);
  for (std::int64_t first = 0; first < 4; ++first) {
    const Array piece{whole.data() + first, first};
    for (std::int64_t b = first; b < 4; ++b) {
      const Work a = work_of(batch, {{}, {}, {whole.data()}, {whole.data()}}, b);
      const Work c = work_of(batch, {{}, {}, piece, piece}, b);
      expect_rows(c.queries, a.queries.begin, a.queries.count);
      expect_rows(c.keys, a.keys.begin, a.keys.count);
    }
  }
}

TEST(CudnnSample, HostArraysFitOneLaunchsParameters) {
  for (int arrays = 1; arrays <= 4; ++arrays) {
    EXPECT_LE(arrays * (samples_per_launch(arrays) + 1), kParameterInts);
    EXPECT_GE(samples_per_launch(arrays), 200);
  }
}

// Whatever the arrays hold: rows lie in the buffers, cuDNN gets no sample without keys, every row
// of a sample is written exactly once, and each row sees what design says it sees.
RC_GTEST_PROP(CudnnSample, HoldsForAnyArrays, ()) {
  const bool packed = *rc::gen::arbitrary<bool>();
  const auto mask = *rc::gen::element(Mask::none, Mask::causal, Mask::causal_top_left);
  const auto size = *rc::gen::inRange<std::int64_t>(1, 6);
  const auto ints = [&](std::int64_t count) {
    return *rc::gen::container<std::vector<std::int32_t>>(
        static_cast<std::size_t>(count),
        rc::gen::oneOf(rc::gen::inRange<std::int32_t>(-5, 40), rc::gen::arbitrary<std::int32_t>()));
  };
  const auto tokens_q = *rc::gen::inRange<std::int64_t>(0, 40);
  const auto tokens_kv = *rc::gen::inRange<std::int64_t>(1, 40);
  Batch batch = packed ? packed_batch(mask, size, tokens_q, tokens_kv)
                       : bshd_batch(mask, size, tokens_q, tokens_kv);
  if (packed) {
    batch.max_q = *rc::gen::inRange<std::int64_t>(0, 40);
    batch.max_kv = *rc::gen::inRange<std::int64_t>(1, 40);
  }
  const auto offsets_q = ints(size + 1), offsets_kv = ints(size + 1);
  const auto q_lengths = ints(size), kv_lengths = ints(size);
  Arrays arrays;
  if (packed) arrays.offsets_q = {offsets_q.data()}, arrays.offsets_kv = {offsets_kv.data()};
  if (*rc::gen::arbitrary<bool>()) arrays.q_lengths = {q_lengths.data()};
  if (*rc::gen::arbitrary<bool>()) arrays.kv_lengths = {kv_lengths.data()};

  Shape shape;
  shape.batch = size;
  shape.packed = packed;
  shape.max_q = batch.max_q;
  shape.max_kv = batch.max_kv;
  shape.tokens_q = batch.tokens_q;
  shape.tokens_kv = batch.tokens_kv;
  shape.q = shape.out = batch.q;
  shape.k = shape.v = batch.k;
  Call call;
  call.q_lengths = arrays.q_lengths.data;
  call.kv_lengths = arrays.kv_lengths.data;
  call.offsets_q = arrays.offsets_q.data;
  call.offsets_kv = arrays.offsets_kv.data;

  for (std::int64_t b = 0; b < size; ++b) {
    const Work w = work_of(batch, arrays, b);
    const std::int64_t buffer_q = packed ? batch.tokens_q : batch.max_q;
    const std::int64_t buffer_kv = packed ? batch.tokens_kv : batch.max_kv;
    RC_ASSERT(w.rows.begin >= 0 && w.rows.begin + w.rows.count <= buffer_q);
    RC_ASSERT(w.queries.begin >= w.rows.begin);
    RC_ASSERT(w.queries.begin + w.queries.count <= w.rows.begin + w.rows.count);
    RC_ASSERT(w.keys.begin >= 0 && w.keys.count >= 1);
    RC_ASSERT(w.keys.begin + w.keys.count <= buffer_kv);
    // The bottom-right diagonal is only ever given where every query sees a key.
    if (mask == Mask::causal) RC_ASSERT(w.queries.count <= w.keys.count);

    // The library's own resolution of the sample is the oracle.
    const Sample s = sample_of(shape, call, b);
    RC_ASSERT(w.rows.count == s.q_rows);
    for (std::int64_t i = 0; i < s.q_rows; ++i) {
      const std::int64_t row = (packed ? s.q_offset / batch.q.row : 0) + i;
      const std::int64_t seen = i < s.q_length ? visible_keys(mask, i, s.q_length, s.kv_length) : 0;
      const bool computed = row >= w.queries.begin && row < w.queries.begin + w.queries.count;
      RC_ASSERT(computed == (seen > 0));
      if (!computed) continue;
      // What cuDNN lets the row see: its rule on the lengths that it is given.
      RC_ASSERT(visible_keys(mask, row - w.queries.begin, w.queries.count, w.keys.count) == seen);
      RC_ASSERT(offset_of(batch.k, b, w.keys.begin) == s.k_offset);
    }
  }
}

TEST(CudnnWorkspace, PartsDoNotOverlap) {
  for (const std::int64_t batch : {1, 7, 64, 1000}) {
    const WorkspaceLayout w = workspace_layout(batch, true, true, 1280);
    EXPECT_EQ(w.lengths_q, 0);
    EXPECT_GE(w.lengths_kv, w.lengths_q + 4 * batch);
    EXPECT_GE(w.offsets, w.lengths_kv + 4 * batch);
    EXPECT_GE(w.offsets_stride, 8 * (batch + 1));
    EXPECT_GE(w.library, w.offsets + 5 * w.offsets_stride);
    EXPECT_EQ(w.size, w.library + 1280);
    for (const std::int64_t at : {w.lengths_kv, w.offsets, w.offsets_stride, w.library}) {
      EXPECT_EQ(at % 256, 0);
    }
  }
  EXPECT_EQ(workspace_layout(9, false, false, 256).size, 256);
  EXPECT_EQ(workspace_layout(9, false, false, 0).size, 0);
}

}  // namespace
}  // namespace batten::impl::cudnn
