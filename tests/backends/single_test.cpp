// What of `single` needs no GPU: the split of a sample into FlashInfer's calls, the choice between
// its kernels, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backends/single/items.hpp"

#if BATTEN_WITH_SINGLE
#include "backends/single/path.hpp"
#include "backends/single/single.hpp"
#include "fakes/fake_device.hpp"
#endif

namespace batten::impl::single {
namespace {

constexpr Mask kMasks[] = {Mask::none, Mask::causal, Mask::causal_top_left};

// The keys that an item's row sees, by FlashInfer's rule.
std::int64_t keys_of(const Item& item, std::int64_t row) {
  return item.causal ? item.keys - item.rows + (row - item.first_row) + 1 : item.keys;
}

TEST(SingleItems, EveryRowIsComputedOnceOnTheKeysThatItSees) {
  for (const Mask mask : kMasks) {
    for (std::int64_t queries = 0; queries <= 9; ++queries) {
      for (std::int64_t keys = 0; keys <= 9; ++keys) {
        for (const std::int64_t padding : {0, 4}) {
          const std::int64_t rows = queries + padding;
          const Items plan = plan_items(mask, queries, keys, rows);
          for (std::int64_t row = 0; row < rows; ++row) {
            int owners = 0;
            for (const Item& item : plan) {
              if (row < item.first_row || row >= item.first_row + item.rows) continue;
              ++owners;
              const std::int64_t expected =
                  row < queries ? visible_keys(mask, row, queries, keys) : 0;
              ASSERT_EQ(keys_of(item, row), expected)
                  << name_of(mask) << " " << queries << "x" << keys << " row " << row;
            }
            ASSERT_EQ(owners, 1) << name_of(mask) << " " << queries << "x" << keys << " row "
                                 << row;
          }
        }
      }
    }
  }
}

TEST(SingleItems, AskOnlyForWhatTheKernelsServe) {
  for (const Mask mask : kMasks) {
    for (std::int64_t queries = 0; queries <= 9; ++queries) {
      for (std::int64_t keys = 0; keys <= 9; ++keys) {
        for (const Item& item : plan_items(mask, queries, keys, queries + 2)) {
          EXPECT_GE(item.rows, 1);
          EXPECT_LE(item.keys, keys);
          // FlashInfer's sm80 kernel throws for causal with more rows than keys.
          EXPECT_TRUE(!item.causal || item.rows <= item.keys);
          EXPECT_TRUE(!item.causal || item.keys > 0);
        }
      }
    }
  }
}

TEST(SingleItems, TheCommonCasesAreOneCall) {
  EXPECT_EQ(plan_items(Mask::none, 128, 4096, 128).count, 1);
  EXPECT_EQ(plan_items(Mask::causal, 128, 4096, 128).count, 1);
  EXPECT_EQ(plan_items(Mask::causal_top_left, 128, 4096, 128).count, 1);
  EXPECT_EQ(plan_items(Mask::causal, 4096, 4096, 4096).count, 1);
}

TEST(SingleItems, ManyQueriesOfFewKeysAreSplit) {
  const Items bottom_right = plan_items(Mask::causal, 10, 4, 10);
  ASSERT_EQ(bottom_right.count, 2);
  EXPECT_EQ(bottom_right.items[0].keys, 0);
  EXPECT_EQ(bottom_right.items[0].rows, 6);
  EXPECT_TRUE(bottom_right.items[1].causal);
  EXPECT_EQ(bottom_right.items[1].first_row, 6);

  const Items top_left = plan_items(Mask::causal_top_left, 10, 4, 10);
  ASSERT_EQ(top_left.count, 2);
  EXPECT_TRUE(top_left.items[0].causal);
  EXPECT_EQ(top_left.items[0].rows, 4);
  EXPECT_FALSE(top_left.items[1].causal);
  EXPECT_EQ(top_left.items[1].keys, 4);
}

#if BATTEN_WITH_SINGLE

Problem problem_of(std::int32_t heads, std::int32_t kv_heads) {
  Problem problem;
  problem.dtype = problem.out_dtype = DType::bf16;
  problem.num_heads = heads;
  problem.num_kv_heads = kv_heads;
  problem.head_dim = problem.head_dim_v = 128;
  return problem;
}

Layout contiguous(std::int64_t rows, std::int64_t heads, std::int64_t head_dim) {
  return {rows * heads * head_dim, heads * head_dim, head_dim};
}

Shape shape_of(const Problem& problem, std::int64_t batch, std::int64_t rows, std::int64_t keys) {
  Shape shape;
  shape.batch = batch;
  shape.max_q = rows;
  shape.max_kv = keys;
  shape.tokens_q = batch * rows;
  shape.tokens_kv = batch * keys;
  shape.q = shape.out = contiguous(rows, problem.num_heads, problem.head_dim);
  shape.k = shape.v = contiguous(keys, problem.num_kv_heads, problem.head_dim);
  shape.lse_layout = {rows * problem.num_heads, problem.num_heads, 1};
  return shape;
}

TEST(SinglePath, HopperHasItsOwnKernel) {
  const Problem problem = problem_of(12, 4);
  const Shape shape = shape_of(problem, 2, 128, 4096);
  EXPECT_EQ(path_of(problem, shape, 90), Path::sm90);
  EXPECT_EQ(path_of(problem, shape, 80), Path::sm80);
  EXPECT_EQ(path_of(problem, shape, 100), Path::sm80);
}

TEST(SinglePath, SharedKeysThatATensorMapCannotSayGoToTheOtherKernel) {
  const Problem problem = problem_of(12, 4);
  Shape shape = shape_of(problem, 2, 128, 4096);
  shape.k.batch = shape.v.batch = 0;  // one sample's keys for all: the pointer says it
  EXPECT_EQ(path_of(problem, shape, 90), Path::sm90);
  shape.k.head = shape.v.head = 0;  // one head's keys for all: one head
  EXPECT_EQ(path_of(problem, shape, 90), Path::sm90);
  shape.v.head = 128;  // but not where the values differ
  EXPECT_EQ(path_of(problem, shape, 90), Path::sm80);
  shape.k.head = 128;
  shape.k.row = 0;
  EXPECT_EQ(path_of(problem, shape, 90), Path::sm80);
  shape.max_kv = 1;  // a single row has no stride
  EXPECT_EQ(path_of(problem, shape, 90), Path::sm90);
}

TEST(SinglePath, ThirtyTwoBitAddressesAreRefusedWhereTheyWouldWrap) {
  const Problem problem = problem_of(8, 8);
  Shape shape = shape_of(problem, 1, 128, (std::int64_t{1} << 22) - 1);
  EXPECT_FALSE(why_not_path(Path::sm90, problem, shape, "1").has_value());
  EXPECT_FALSE(why_not_path(Path::sm80, problem, shape, "1").has_value());
  shape.max_kv += 1;  // 2^32 elements
  EXPECT_FALSE(why_not_path(Path::sm90, problem, shape, "1").has_value());
  const auto reason = why_not_path(Path::sm80, problem, shape, "1.2");
  ASSERT_TRUE(reason.has_value());
  EXPECT_NE(reason->find("32 bits"), std::string::npos);
  EXPECT_NE(reason->find("1.2"), std::string::npos);
  // Many small samples are no matter: each has its own pointer.
  const Shape many = shape_of(problem, 4096, 128, 4096);
  EXPECT_FALSE(why_not_path(Path::sm80, problem, many, "1").has_value());
}

TEST(SinglePath, OutputsInOtherOrdersAreNoticed) {
  const Problem problem = problem_of(12, 4);
  Shape shape = shape_of(problem, 2, 128, 4096);
  EXPECT_TRUE(output_is_contiguous(problem, shape));
  EXPECT_TRUE(lse_is_contiguous(problem, shape));
  shape.out.batch += 8;  // a gap between samples is no matter
  EXPECT_TRUE(output_is_contiguous(problem, shape));
  shape.out.row += 8;
  EXPECT_FALSE(output_is_contiguous(problem, shape));
  shape.lse_layout = {12 * 128, 1, 128};
  EXPECT_FALSE(lse_is_contiguous(problem, shape));
}

TEST(SingleBackend, RefusesProblemsWithAReason) {
  const auto backend = make_single();
  const Device device = Device::cuda(0);
  const auto reason = [&](auto change) {
    Problem problem = problem_of(12, 4);
    change(problem);
    return backend->why_not(problem, device).value_or("");
  };
  EXPECT_EQ(reason([](Problem&) {}), "");
  EXPECT_NE(reason([](Problem& p) { p.dtype = p.out_dtype = DType::f32; }).find("float32"),
            std::string::npos);
  EXPECT_NE(reason([](Problem& p) { p.out_dtype = DType::f32; }).find("float32"),
            std::string::npos);
  EXPECT_NE(reason([](Problem& p) { p.head_dim_v = 64; }).find("equal head dims"),
            std::string::npos);
  EXPECT_NE(reason([](Problem& p) { p.head_dim = p.head_dim_v = 96; }).find("96"),
            std::string::npos);
#if !BATTEN_SINGLE_ALL
  EXPECT_NE(reason([](Problem& p) { p.head_dim = p.head_dim_v = 64; }).find("BATTEN_SINGLE=all"),
            std::string::npos);
#endif
}

TEST(SingleBackend, RefusesLengthsThatOnlyTheDeviceKnows) {
  batten::testing::FakeDevices devices;
  const auto backend = make_single();
  const Problem problem = problem_of(12, 4);
  Shape shape = shape_of(problem, 2, 128, 4096);
  EXPECT_FALSE(backend->why_not(problem, shape, Device::cuda(0), {}).has_value());
  shape.kv_lengths = Source::host;
  EXPECT_FALSE(backend->why_not(problem, shape, Device::cuda(0), {}).has_value());
  shape.kv_lengths = Source::device;
  EXPECT_NE(backend->why_not(problem, shape, Device::cuda(0), {}).value_or("").find("kv_lengths"),
            std::string::npos);
}

TEST(SingleBackend, IsAvailableFromSm80On) {
  batten::testing::FakeDevices devices;
  const auto backend = make_single();
  devices->change_properties(0).major = 8;
  devices->change_properties(0).minor = 0;
  EXPECT_TRUE(backend->availability(Device::cuda(0)).available);
  devices->change_properties(0).major = 7;
  devices->change_properties(0).minor = 5;
  const Availability old = backend->availability(Device::cuda(0));
  EXPECT_FALSE(old.available);
  EXPECT_NE(old.reason.find("sm75"), std::string::npos);
  EXPECT_FALSE(backend->availability(Device::cuda(3)).available);
  EXPECT_FALSE(backend->availability(Device::cpu()).available);
}

TEST(SingleBackend, PlansDependOnQueriesAndLayoutsAlone) {
  const auto backend = make_single();
  const Problem problem = problem_of(12, 4);
  const Shape shape = shape_of(problem, 2, 128, 4096);
  Shape longer = shape;
  longer.max_kv = 8192;
  longer.tokens_kv = 2 * 8192;
  EXPECT_EQ(backend->plan_key(problem, shape, {}), backend->plan_key(problem, longer, {}));
  Shape packed = shape;
  packed.packed = true;
  packed.tokens_q = 100;
  Shape packed_more = packed;
  packed_more.tokens_q = 200;
  EXPECT_EQ(backend->plan_key(problem, packed, {}), backend->plan_key(problem, packed_more, {}));
  EXPECT_GE(backend->plan_key(problem, packed, {}).tokens_q, 200);
}

#endif  // BATTEN_WITH_SINGLE

}  // namespace
}  // namespace batten::impl::single
