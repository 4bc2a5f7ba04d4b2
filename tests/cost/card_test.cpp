// Which constants a card gives for a kernel.
#include "cost/card.hpp"

#include <gtest/gtest.h>

namespace batten::impl::cost {
namespace {

Constants constants(const char* kernel, int head_dim, bool causal, double block_us) {
  Constants c;
  c.kernel = kernel;
  c.head_dim = head_dim;
  c.causal = causal;
  c.launch_us = 2;
  c.block_us = block_us;
  return c;
}

TEST(Card, GivesAKernelsOwnConstants) {
  Card card;
  card.set(constants("native", 128, false, 1.3), Origin::shipped);
  card.set(constants("native", 128, true, 1.4), Origin::measured);
  const auto full = card.find("native", 128, false);
  ASSERT_TRUE(full);
  EXPECT_EQ(full->constants.block_us, 1.3);
  EXPECT_EQ(full->origin, Origin::shipped);
  EXPECT_EQ(card.find("native", 128, true)->origin, Origin::measured);
  EXPECT_FALSE(card.find("cudnn", 128, false));
  EXPECT_FALSE(card.find("nativ", 128, false));
}

TEST(Card, LaterConstantsReplaceEarlierOnes) {
  Card card;
  card.set(constants("native", 128, false, 1.3), Origin::shipped);
  card.set(constants("native", 128, false, 1.1), Origin::measured);
  ASSERT_EQ(card.entries().size(), 1u);
  EXPECT_EQ(card.find("native", 128, false)->constants.block_us, 1.1);
}

TEST(Card, AnotherHeadDimIsAnEstimateFromTheNearest) {
  Card card;
  card.set(constants("cudnn", 64, false, 0.9), Origin::measured);
  card.set(constants("cudnn", 128, false, 1.6), Origin::measured);
  const auto narrow = card.find("cudnn", 72, false);
  ASSERT_TRUE(narrow);
  EXPECT_EQ(narrow->origin, Origin::estimated);
  EXPECT_EQ(narrow->constants.head_dim, 72);
  EXPECT_GT(narrow->constants.block_us, 0.9);
  EXPECT_LT(narrow->constants.block_us, 1.1);
  const auto wide = card.find("cudnn", 256, false);
  EXPECT_GT(wide->constants.block_us, 1.6);
  EXPECT_LT(wide->constants.block_us, 3.2) << "softmax does not grow with the head dim";
  EXPECT_EQ(wide->constants.launch_us, 2);
  // Of two equally near the larger one.
  EXPECT_LT(card.find("cudnn", 96, false)->constants.block_us, 1.6);
  EXPECT_GT(card.find("cudnn", 96, false)->constants.block_us, 0.9);
}

TEST(Card, TheSameMaskIsNearerThanTheSameHeadDim) {
  Card card;
  card.set(constants("cudnn", 64, true, 5), Origin::measured);
  card.set(constants("cudnn", 128, false, 1), Origin::measured);
  const auto causal = card.find("cudnn", 128, true);
  EXPECT_GT(causal->constants.block_us, 4);
  EXPECT_TRUE(causal->constants.causal);
  EXPECT_EQ(causal->origin, Origin::estimated);
}

TEST(Card, FindsExactlyTheMeasuredCall) {
  MeasuredShape shape{.dtype = DType::bf16,
                      .batch = 4,
                      .queries = 128,
                      .keys = 4096,
                      .num_heads = 12,
                      .num_kv_heads = 4,
                      .head_dim = 128};
  Card card;
  card.set_measured({{shape, {{"native", 21.0}, {"cudnn", 54.0}}}});
  ASSERT_NE(card.find_measured(shape), nullptr);
  EXPECT_EQ(card.find_measured(shape)->of("cudnn"), 54.0);
  EXPECT_FALSE(card.find_measured(shape)->of("single"));
  ++shape.keys;
  EXPECT_EQ(card.find_measured(shape), nullptr);
}

TEST(Constants, NameTheirKernel) {
  EXPECT_EQ(constants("cudnn:packed", 64, true, 1).str(), "cudnn:packed d64 causal");
  EXPECT_STREQ(name_of(Origin::measured), "measured");
  EXPECT_STREQ(name_of(Origin::shipped), "shipped");
  EXPECT_STREQ(name_of(Origin::estimated), "estimated");
}

}  // namespace
}  // namespace batten::impl::cost
