// What a call is made of, and what that takes.
#include "cost/prediction.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace batten::impl::cost {
namespace {

Problem problem_of(Mask mask = Mask::none) {
  Problem p;
  p.dtype = p.out_dtype = DType::bf16;
  p.num_heads = 12;
  p.num_kv_heads = 4;
  p.head_dim = p.head_dim_v = 128;
  p.mask = mask;
  return p;
}

Shape shape_of(std::int64_t batch, std::int64_t queries, std::int64_t keys) {
  Shape s;
  s.batch = batch;
  s.max_q = queries;
  s.max_kv = keys;
  s.tokens_q = batch * queries;
  s.tokens_kv = batch * keys;
  return s;
}

TEST(Prediction, AddsTermsUp) {
  Card::Entry entry;
  entry.constants = {
      .kernel = "k", .launch_us = 2, .tile_us = 3, .block_us = 5, .part_us = 7, .merge_us = 11};
  entry.origin = Origin::shipped;
  const Prediction p = predict(
      entry, {.launches = 2, .starts = 3, .blocks = 10, .parts = 1, .merges = 2, .flops = 1e30});
  EXPECT_DOUBLE_EQ(p.us, 2 * 2 + 3 * 3 + 10 * 5 + 7 + 2 * 11);
  EXPECT_STREQ(p.bound, "tiles");
  EXPECT_EQ(p.kernel_text(), "k d128");
  EXPECT_EQ(p.origin, Origin::shipped);
  EXPECT_FALSE(p.exact);
  double sum = 0;
  for (const Term& term : p.terms) sum += term.us();
  EXPECT_DOUBLE_EQ(sum, p.us);
}

TEST(Prediction, IsBoundByMemory) {
  Card::Entry entry;
  entry.constants = {.kernel = "k", .launch_us = 2, .block_us = 1, .gbps = 400};
  const Prediction p = predict(entry, {.blocks = 10, .bytes = 1e7});
  EXPECT_DOUBLE_EQ(p.us, 27);
  EXPECT_STREQ(p.bound, "memory");
  EXPECT_DOUBLE_EQ(p.memory_us, 25);
}

// What is done with parts comes when their keys have arrived: no memory hides it.
TEST(Prediction, AddsPartsToWhatBoundsIt) {
  Card::Entry entry;
  entry.constants = {
      .kernel = "k", .launch_us = 2, .block_us = 1, .part_us = 3, .merge_us = 4, .gbps = 400};
  const Prediction slow = predict(entry, {.blocks = 10, .parts = 1, .merges = 2, .bytes = 1e7});
  EXPECT_DOUBLE_EQ(slow.us, 2 + 25 + 3 + 2 * 4);
  EXPECT_STREQ(slow.bound, "memory");
  // Just less than what the blocks take.
  const Prediction fast = predict(entry, {.blocks = 26, .parts = 1, .merges = 2, .bytes = 1e7});
  EXPECT_DOUBLE_EQ(fast.us, 2 + 26 + 3 + 2 * 4);
  EXPECT_STREQ(fast.bound, "tiles");
}

TEST(Prediction, FeelsThePowerLimitInLongCallsOnly) {
  Card::Entry entry;
  entry.constants = {.kernel = "k", .block_us = 1, .tflops = 500};
  const auto of = [&](double blocks) {  // at the limit half as long again
    return predict(entry, {.blocks = blocks, .flops = blocks * 1.5 * 500e6});
  };
  EXPECT_DOUBLE_EQ(of(400).us, 400);
  EXPECT_STREQ(of(400).bound, "tiles");
  EXPECT_GT(of(2000).us, 2000);
  EXPECT_LT(of(2000).us, 3000);
  EXPECT_STREQ(of(2000).bound, "power");
  EXPECT_DOUBLE_EQ(of(20'000).us, 30'000);
  // A longer call never takes less.
  double before = 0;
  for (double blocks = 100; blocks < 30'000; blocks *= 1.1) {
    EXPECT_GT(of(blocks).us, before);
    before = of(blocks).us;
  }
  // Below the limit nothing changes.
  EXPECT_DOUBLE_EQ(predict(entry, {.blocks = 20'000, .flops = 1}).us, 20'000);
}

TEST(Flops, CountWhatIsSeen) {
  EXPECT_DOUBLE_EQ(flops_of(problem_of(), shape_of(4, 128, 4096)), 4.0 * 4 * 128 * 4096 * 12 * 128);
  for (const Mask mask : {Mask::causal, Mask::causal_top_left}) {
    for (std::int64_t queries = 0; queries < 9; ++queries) {
      for (std::int64_t keys = 0; keys < 9; ++keys) {
        double seen = 0;
        for (std::int64_t i = 0; i < queries; ++i)
          seen += static_cast<double>(visible_keys(mask, i, queries, keys));
        EXPECT_DOUBLE_EQ(flops_of(problem_of(mask), shape_of(1, queries, keys)),
                         4 * seen * 12 * 128)
            << queries << " x " << keys;
      }
    }
  }
}

TEST(Bytes, AreThoseOfTheTensors) {
  EXPECT_DOUBLE_EQ(bytes_of(problem_of(), shape_of(2, 10, 100)),
                   2.0 * (2 * 10 * 12 * 128 * 2 + 2 * 100 * 4 * 128 * 2));
}

TEST(Lengths, OfPackedCallsAreTheMean) {
  Shape s = shape_of(4, 1000, 2000);
  EXPECT_EQ(lengths_of(s).queries, 1000);
  s.packed = true;
  s.tokens_q = 1001;
  s.tokens_kv = 100'000;
  EXPECT_EQ(lengths_of(s).queries, 251);
  EXPECT_EQ(lengths_of(s).keys, 2000);
}

TEST(Grid, GoesInRounds) {
  // 192 tiles on 132 multiprocessors: the busiest has two.
  const Grid g = grid_of(Mask::none, {.queries = 512, .keys = 4096}, 48, 128, 128, 132);
  EXPECT_EQ(g.tiles, 192);
  EXPECT_EQ(g.blocks, 192 * 32);
  EXPECT_EQ(g.busiest_starts, 2);
  EXPECT_EQ(g.busiest_blocks, 64);
  EXPECT_EQ(g.longest, 32);
}

TEST(Grid, CountsBlocksInUnits) {
  const Grid wide = grid_of(Mask::none, {.queries = 128, .keys = 1000}, 12, 128, 192, 132);
  EXPECT_EQ(wide.busiest_blocks, 6 * 1.5);
  const Grid narrow = grid_of(Mask::causal, {.queries = 128, .keys = 1000}, 12, 128, 64, 132);
  EXPECT_EQ(narrow.busiest_blocks, 16 * 0.5);
}

TEST(Grid, OfNothingIsNothing) {
  for (const Mask mask : {Mask::none, Mask::causal}) {
    const Grid none = grid_of(mask, {.queries = 0, .keys = 100}, 12, 128, 128, 132);
    EXPECT_EQ(none.tiles + none.blocks + none.busiest_starts + none.busiest_blocks, 0);
    const Grid blind = grid_of(mask, {.queries = 100, .keys = 0}, 12, 128, 128, 132);
    EXPECT_EQ(blind.tiles, 12);
    EXPECT_EQ(blind.blocks, 0);
  }
}

// Against dealing the tiles out one by one, the longest first.
TEST(Grid, OfACausalCallIsNearTheRealOrder) {
  for (const std::int64_t length : {100, 512, 1000, 2048, 5000, 16384}) {
    for (const std::int64_t heads : {1, 8, 16, 64, 256}) {
      const Lengths n{.queries = length, .keys = length};
      std::vector<double> load(132);
      double total = 0;
      for (std::int64_t tile = (length - 1) / 128; tile >= 0; --tile) {
        for (std::int64_t head = 0; head < heads; ++head) {
          const auto blocks =
              static_cast<double>(blocks_of_tile(Mask::causal, tile * 128, 128, n, 128));
          *std::ranges::min_element(load) += blocks;
          total += blocks;
        }
      }
      const double busiest = *std::ranges::max_element(load);
      const Grid g = grid_of(Mask::causal, n, heads, 128, 128, 132);
      EXPECT_NEAR(g.blocks / total, 1, 0.02) << length << " x " << heads;
      EXPECT_GT(g.busiest_blocks, 0.9 * busiest) << length << " x " << heads;
      EXPECT_LT(g.busiest_blocks, 1.35 * busiest + 1) << length << " x " << heads;
    }
  }
}

TEST(MeasuredShape, IsOnlyOfPlainCalls) {
  EXPECT_TRUE(measured_shape(problem_of(), shape_of(4, 128, 4096)));
  EXPECT_EQ(measured_shape(problem_of(), shape_of(4, 128, 4096))->keys, 4096);
  Shape s = shape_of(4, 128, 4096);
  s.kv_lengths = Source::device;
  EXPECT_FALSE(measured_shape(problem_of(), s));
  s = shape_of(4, 128, 4096);
  s.packed = true;
  EXPECT_FALSE(measured_shape(problem_of(), s));
  Problem p = problem_of();
  p.out_dtype = DType::f32;
  EXPECT_FALSE(measured_shape(p, shape_of(4, 128, 4096)));
}

}  // namespace
}  // namespace batten::impl::cost
