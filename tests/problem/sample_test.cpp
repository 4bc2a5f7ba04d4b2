// The rows of one sample, and the keys that a query sees.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "problem/problem.hpp"

namespace batten::impl {
namespace {

constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();

Shape packed_shape(std::int64_t batch, std::int64_t tokens_q, std::int64_t tokens_kv,
                   std::int64_t max_q, std::int64_t max_kv) {
  Shape s;
  s.packed = true;
  s.batch = batch;
  s.tokens_q = tokens_q;
  s.tokens_kv = tokens_kv;
  s.max_q = max_q;
  s.max_kv = max_kv;
  s.offsets_q = s.offsets_kv = Source::host;
  // Different everywhere, so that no stride can stand for another.
  s.q.row = 10;
  s.k.row = 100;
  s.v.row = 1000;
  s.out.row = 10000;
  s.lse_layout.row = 3;
  return s;
}

Call packed_call(const std::vector<std::int32_t>& offsets_q,
                 const std::vector<std::int32_t>& offsets_kv) {
  Call c;
  c.offsets_q = offsets_q.data();
  c.offsets_kv = offsets_kv.data();
  return c;
}

TEST(Sample, OfADenseCallIsAllItsRows) {
  Shape s;
  s.batch = 3;
  s.max_q = 5;
  s.max_kv = 7;
  s.q.batch = 10;
  s.k.batch = 100;
  s.v.batch = 1000;
  s.out.batch = 10000;
  s.lse_layout.batch = 3;
  const Sample sample = sample_of(s, {}, 2);
  EXPECT_EQ(sample.q_offset, 20);
  EXPECT_EQ(sample.k_offset, 200);
  EXPECT_EQ(sample.v_offset, 2000);
  EXPECT_EQ(sample.out_offset, 20000);
  EXPECT_EQ(sample.lse_offset, 6);
  EXPECT_EQ(sample.q_length, 5);
  EXPECT_EQ(sample.q_rows, 5);
  EXPECT_EQ(sample.kv_length, 7);
}

TEST(Sample, OfADenseCallWithLengthsStillOwnsAllItsOutputRows) {
  Shape s;
  s.batch = 4;
  s.max_q = 5;
  s.max_kv = 7;
  const std::vector<std::int32_t> q_lengths{2, 0, 6, kMin};
  const std::vector<std::int32_t> kv_lengths{-1, 3, kMax, 7};
  Call c;
  c.q_lengths = q_lengths.data();
  c.kv_lengths = kv_lengths.data();
  const std::int64_t expected_q[] = {2, 0, 5, 0};
  const std::int64_t expected_kv[] = {0, 3, 7, 7};
  for (std::int64_t b = 0; b < 4; ++b) {
    const Sample sample = sample_of(s, c, b);
    EXPECT_EQ(sample.q_length, expected_q[b]) << b;
    EXPECT_EQ(sample.kv_length, expected_kv[b]) << b;
    EXPECT_EQ(sample.q_rows, 5) << b;
  }
}

TEST(Sample, OfAPackedCallBeginsAtItsOffset) {
  const std::vector<std::int32_t> offsets_q{1, 4, 4, 9}, offsets_kv{0, 2, 7, 8};
  const Shape s = packed_shape(3, 9, 8, 5, 5);
  const Call c = packed_call(offsets_q, offsets_kv);
  const Sample first = sample_of(s, c, 0);
  EXPECT_EQ(first.q_offset, 10);
  EXPECT_EQ(first.out_offset, 10000);
  EXPECT_EQ(first.lse_offset, 3);
  EXPECT_EQ(first.k_offset, 0);
  EXPECT_EQ(first.q_length, 3);
  EXPECT_EQ(first.q_rows, 3);
  EXPECT_EQ(first.kv_length, 2);
  const Sample empty = sample_of(s, c, 1);
  EXPECT_EQ(empty.q_length, 0);
  EXPECT_EQ(empty.q_rows, 0);
  EXPECT_EQ(empty.k_offset, 200);
  EXPECT_EQ(empty.v_offset, 2000);
  EXPECT_EQ(empty.kv_length, 5);
  const Sample last = sample_of(s, c, 2);
  EXPECT_EQ(last.q_offset, 40);
  EXPECT_EQ(last.q_length, 5);
  EXPECT_EQ(last.v_offset, 7000);
  EXPECT_EQ(last.kv_length, 1);
}

TEST(Sample, OfAPackedCallWithLengthsLeavesTheGapAlone) {
  const std::vector<std::int32_t> offsets_q{0, 4, 9}, offsets_kv{0, 2, 7}, q_lengths{1, 5},
      kv_lengths{2, 0};
  const Shape s = packed_shape(2, 9, 7, 5, 5);
  Call c = packed_call(offsets_q, offsets_kv);
  c.q_lengths = q_lengths.data();
  c.kv_lengths = kv_lengths.data();
  EXPECT_EQ(sample_of(s, c, 0).q_length, 1);
  EXPECT_EQ(sample_of(s, c, 0).q_rows, 1);
  EXPECT_EQ(sample_of(s, c, 0).kv_length, 2);
  EXPECT_EQ(sample_of(s, c, 1).q_length, 5);
  EXPECT_EQ(sample_of(s, c, 1).kv_length, 0);
}

TEST(Sample, StaysWithinTheUpperBounds) {
  const std::vector<std::int32_t> offsets_q{0, 4, 9}, offsets_kv{0, 2, 7}, kv_lengths{2, 5};
  const Shape s = packed_shape(2, 9, 7, 3, 4);
  Call c = packed_call(offsets_q, offsets_kv);
  EXPECT_EQ(sample_of(s, c, 0).q_length, 3);
  EXPECT_EQ(sample_of(s, c, 1).q_length, 3);
  EXPECT_EQ(sample_of(s, c, 1).q_rows, 3);
  EXPECT_EQ(sample_of(s, c, 1).kv_length, 4);
  c.kv_lengths = kv_lengths.data();
  EXPECT_EQ(sample_of(s, c, 1).kv_length, 4);
}

TEST(Sample, OffsetsAreAddressedInSixtyFourBits) {
  const std::vector<std::int32_t> offsets{0, kMax - 1, kMax};
  Shape s = packed_shape(2, kMax, kMax, kMax, kMax);
  s.q.row = s.k.row = s.v.row = s.out.row = 40 * 128;
  const Call c = packed_call(offsets, offsets);
  const std::int64_t expected = std::int64_t{kMax - 1} * 40 * 128;
  EXPECT_EQ(sample_of(s, c, 1).q_offset, expected);
  EXPECT_EQ(sample_of(s, c, 1).k_offset, expected);
  EXPECT_EQ(sample_of(s, c, 1).v_offset, expected);
  EXPECT_EQ(sample_of(s, c, 1).out_offset, expected);
  EXPECT_EQ(sample_of(s, c, 1).q_length, 1);
}

// An int32 as hostile as it gets, often near the values that matter.
rc::Gen<std::int32_t> any_offset() {
  return rc::gen::oneOf(rc::gen::inRange<std::int32_t>(-5, 40),
                        rc::gen::element(kMin, kMax, kMin + 1, kMax - 1, 0));
}

RC_GTEST_PROP(Sample, LiesInTheBufferForAnyArrays, ()) {
  const auto batch = *rc::gen::inRange<std::size_t>(1, 5);
  const auto offsets_q = *rc::gen::container<std::vector<std::int32_t>>(batch + 1, any_offset());
  const auto offsets_kv = *rc::gen::container<std::vector<std::int32_t>>(batch + 1, any_offset());
  const auto q_lengths = *rc::gen::container<std::vector<std::int32_t>>(batch, any_offset());
  const auto kv_lengths = *rc::gen::container<std::vector<std::int32_t>>(batch, any_offset());
  const std::int64_t tokens_q = *rc::gen::inRange(0, 30), tokens_kv = *rc::gen::inRange(0, 30);
  const std::int64_t max_q = *rc::gen::inRange<std::int64_t>(0, tokens_q + 1);
  const std::int64_t max_kv = *rc::gen::inRange<std::int64_t>(0, tokens_kv + 1);
  const Shape s =
      packed_shape(static_cast<std::int64_t>(batch), tokens_q, tokens_kv, max_q, max_kv);
  Call c = packed_call(offsets_q, offsets_kv);
  const bool with_lengths = *rc::gen::arbitrary<bool>();
  if (with_lengths) {
    c.q_lengths = q_lengths.data();
    c.kv_lengths = kv_lengths.data();
  }
  for (std::size_t b = 0; b < batch; ++b) {
    const Sample sample = sample_of(s, c, static_cast<std::int64_t>(b));
    const std::int64_t q_begin = sample.q_offset / s.q.row;
    const std::int64_t kv_begin = sample.k_offset / s.k.row;
    RC_ASSERT(q_begin >= 0 && kv_begin >= 0);
    RC_ASSERT(sample.q_length >= 0 && sample.q_rows == sample.q_length);
    RC_ASSERT(q_begin + sample.q_rows <= tokens_q && sample.q_rows <= max_q);
    RC_ASSERT(sample.kv_length >= 0 && kv_begin + sample.kv_length <= tokens_kv);
    RC_ASSERT(sample.kv_length <= max_kv);
    RC_ASSERT(sample.out_offset == q_begin * s.out.row && sample.v_offset == kv_begin * s.v.row);
    if (with_lengths) {
      RC_ASSERT(sample.q_length <= std::max(q_lengths[b], 0));
      RC_ASSERT(sample.kv_length <= std::max(kv_lengths[b], 0));
    }
  }
}

// ---- visible_keys -------------------------------------------------------------------------------

// The rule of batten.h, key by key.
bool sees(Mask mask, std::int64_t i, std::int64_t j, std::int64_t q_length,
          std::int64_t kv_length) {
  switch (mask) {
    case Mask::none:
      return true;
    case Mask::causal:
      return j <= i + (kv_length - q_length);
    case Mask::causal_top_left:
      return j <= i;
  }
  return false;
}

TEST(VisibleKeys, IsWhatTheRuleSaysKeyByKey) {
  for (const Mask mask : {Mask::none, Mask::causal, Mask::causal_top_left}) {
    for (std::int64_t q_length = 0; q_length <= 9; ++q_length) {
      for (std::int64_t kv_length = 0; kv_length <= 9; ++kv_length) {
        for (std::int64_t i = 0; i < q_length; ++i) {
          const std::int64_t end = visible_keys(mask, i, q_length, kv_length);
          ASSERT_GE(end, 0);
          ASSERT_LE(end, kv_length);
          for (std::int64_t j = 0; j < kv_length; ++j) {
            ASSERT_EQ(j < end, sees(mask, i, j, q_length, kv_length))
                << name_of(mask) << " i=" << i << " j=" << j << " " << q_length << "x" << kv_length;
          }
        }
      }
    }
  }
}

TEST(VisibleKeys, AreCountedInSixtyFourBits) {
  constexpr std::int64_t kBig = std::int64_t{1} << 33;
  EXPECT_EQ(visible_keys(Mask::causal, kBig - 1, kBig, 2 * kBig), 2 * kBig);
  EXPECT_EQ(visible_keys(Mask::causal, 0, 2 * kBig, kBig), 0);
  EXPECT_EQ(visible_keys(Mask::causal_top_left, kBig, 2 * kBig, 4 * kBig), kBig + 1);
}

}  // namespace
}  // namespace batten::impl
