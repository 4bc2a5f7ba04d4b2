// What the backends predict of calls on a card that is not here, beside times recorded on it.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cost/lookup.hpp"
#include "cost/prediction.hpp"
#include "dispatch/registry.hpp"
#include "fakes/environment.hpp"
#include "fakes/fake_backend.hpp"

namespace batten::impl::cost {
namespace {

using batten::testing::ScopedVariable;

Problem problem_of(int heads, int kv_heads, Mask mask = Mask::none, int head_dim = 128) {
  Problem p;
  p.dtype = p.out_dtype = DType::bf16;
  p.num_heads = heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = p.head_dim_v = head_dim;
  p.mask = mask;
  return p;
}

Shape shape_of(const Problem& p, std::int64_t batch, std::int64_t queries, std::int64_t keys) {
  Shape s;
  s.batch = batch;
  s.max_q = queries;
  s.max_kv = keys;
  s.tokens_q = batch * queries;
  s.tokens_kv = batch * keys;
  s.padding_is_finite = true;
  s.q = s.out = {queries * p.num_heads * p.head_dim, std::int64_t{p.num_heads} * p.head_dim,
                 p.head_dim};
  s.k = s.v = {keys * p.num_kv_heads * p.head_dim, std::int64_t{p.num_kv_heads} * p.head_dim,
               p.head_dim};
  return s;
}

double us_of(const char* backend, const Problem& p, const Shape& s, const std::string& form = {}) {
  static const Card card = named_card("h200");
  const Backend* b = Registry::instance().find(backend);
  EXPECT_NE(b, nullptr);
  EXPECT_EQ(b->why_not_on(card, p, s, {.form = form}), std::nullopt);
  const auto prediction = b->predict(card, p, s, {.form = form});
  return prediction ? prediction->us : NAN;
}

// Medians recorded in benchmarks/results/h200/peers_backends.json.
struct Recorded {
  std::int64_t batch, queries, keys;
  int heads, kv_heads;
  bool causal;
  double cudnn, single;
};
constexpr Recorded kRecorded[] = {
    {4, 128, 4096, 12, 4, false, 53.9, 199.4},   {8, 256, 4096, 12, 4, false, 107.3, 399.0},
    {16, 512, 4096, 12, 4, false, 326.1, 929.1}, {32, 1024, 4096, 12, 4, false, 1438, 1944},
    {1, 32760, 512, 12, 12, false, 202.6, 280},  {1, 32760, 32760, 12, 12, false, 12295, 10212},
    {16, 1024, 1024, 16, 16, true, 169.6, 332},  {1, 16384, 16384, 16, 16, true, 2137, 1836},
};

TEST(Backends, PredictRecordedTimesOfTheH200) {
  for (const Recorded& r : kRecorded) {
    const Problem p = problem_of(r.heads, r.kv_heads, r.causal ? Mask::causal : Mask::none);
    const Shape s = shape_of(p, r.batch, r.queries, r.keys);
    const auto where =
        std::to_string(r.batch) + " " + std::to_string(r.queries) + "x" + std::to_string(r.keys);
    EXPECT_NEAR(us_of("cudnn", p, s) / r.cudnn, 1, 0.15) << where;
    EXPECT_NEAR(us_of("single", p, s) / r.single, 1, 0.25) << where;
    EXPECT_LT(us_of("native", p, s), us_of("cudnn", p, s)) << where;
  }
}

TEST(Backends, CudnnsKernelForOneQueryDividesTheKeys) {
  const Problem p = problem_of(12, 12);
  // 12.9 and 54.2 us were recorded; with whole tiles it would be 430.
  EXPECT_NEAR(us_of("cudnn", p, shape_of(p, 1, 1, 4096)), 12.9, 4);
  EXPECT_NEAR(us_of("cudnn", p, shape_of(p, 1, 1, 32760)), 54.2, 8);
  EXPECT_GT(us_of("cudnn", p, shape_of(p, 1, 2, 32760)), 300);
  EXPECT_GT(us_of("cudnn", p, shape_of(p, 1, 1, 32760), "packed"), 300);
}

TEST(Backends, CudnnsFormsCostMore) {
  const Problem p = problem_of(12, 4);
  const Shape s = shape_of(p, 4, 128, 4096);
  EXPECT_GT(us_of("cudnn", p, s, "packed"), 1.15 * us_of("cudnn", p, s));
  Shape lengths = s;
  lengths.kv_lengths = Source::device;
  EXPECT_GT(us_of("cudnn", p, lengths), 1.1 * us_of("cudnn", p, s));
}

TEST(Backends, CudnnsSharedKeysAreOneSampleOrOneLaunchEach) {
  const Problem p = problem_of(12, 12);
  Shape shared = shape_of(p, 8, 64, 1024);
  const double apart = us_of("cudnn", p, shared);
  shared.k.batch = shared.v.batch = 0;
  EXPECT_LT(us_of("cudnn", p, shared), apart + 1) << "half of the tiles";
  shared.q.batch *= 2;  // no longer one run
  EXPECT_GT(us_of("cudnn", p, shared), 4 * apart);
}

TEST(Backends, SingleLaunchesForEachSample) {
  const Problem p = problem_of(12, 4);
  const double one = us_of("single", p, shape_of(p, 1, 128, 4096));
  EXPECT_NEAR(us_of("single", p, shape_of(p, 8, 128, 4096)), 8 * one, 1e-6);
  // A square, and rows below it that see all keys.
  const Problem top_left = problem_of(12, 4, Mask::causal_top_left);
  EXPECT_GT(us_of("single", top_left, shape_of(top_left, 1, 512, 256)),
            us_of("single", top_left, shape_of(top_left, 1, 256, 256)));
}

TEST(Backends, NativeSplitsBatchesBeyondALaunch) {
  const Problem p = problem_of(2, 2);
  Shape s = shape_of(p, 300, 128, 256);
  const double together = us_of("native", p, s);
  s.q_lengths = s.kv_lengths = Source::host;  // 128 samples a launch
  EXPECT_GT(us_of("native", p, s), together);
}

// With less shared memory other kernels run, which take longer where their blocks are shorter.
TEST(Backends, NativeKnowsWhatLittleSharedMemoryCosts) {
  const ScopedVariable family("BATTEN_NATIVE_ARCH", "sm80");
  const auto us_with = [](const char* kilobytes, int head_dim, std::int64_t batch) {
    const ScopedVariable limit("BATTEN_SMEM_LIMIT", kilobytes);
    const Problem p = problem_of(16, 16, Mask::none, head_dim);
    return us_of("native", p, shape_of(p, batch, 1024, 4096));
  };
  for (const std::int64_t batch : {1, 16}) {
    EXPECT_NEAR(us_with("99", 64, batch) / us_with("163", 64, batch), 1, 1e-9);
    EXPECT_NEAR(us_with("99", 128, batch) / us_with("163", 128, batch), 1.15, 0.04);
    EXPECT_NEAR(us_with("99", 256, batch) / us_with("163", 256, batch), 1.23, 0.06);
  }
}

TEST(Backends, WhatIsNotServedElsewhereIsSaid) {
  const Card h200 = named_card("h200");
  CardProperties ampere{.name = "NVIDIA A100", .arch = 80, .multiprocessors = 108};
  const Card a100 = known_card(ampere);
  const Problem p = problem_of(12, 4);
  const Shape s = shape_of(p, 1, 128, 128);
  const auto why = [&](const char* backend, const Card& card, const Problem& problem,
                       const Shape& shape) {
    return Registry::instance().find(backend)->why_not_on(card, problem, shape, {}).value_or("");
  };
  EXPECT_EQ(why("native", a100, p, s), "");
  const Card t4 = known_card({.name = "Tesla T4", .arch = 75, .multiprocessors = 40});
  EXPECT_NE(why("native", t4, p, s).find("sm75"), std::string::npos);
  EXPECT_EQ(why("cudnn", a100, p, s), "");
  EXPECT_EQ(why("single", a100, p, s), "");
  EXPECT_NE(why("cpu", h200, p, s), "");
  EXPECT_EQ(why("reference", h200, p, s), "");
  Problem fp32 = p;
  fp32.dtype = fp32.out_dtype = DType::f32;
  for (const char* backend : {"native", "cudnn", "single"})
    EXPECT_NE(why(backend, h200, fp32, s).find("float32"), std::string::npos) << backend;
  Shape lengths = s;
  lengths.kv_lengths = Source::device;
  EXPECT_NE(why("single", h200, p, lengths).find("host"), std::string::npos);
  // FlashInfer's sm80 kernel divides keys by rules of its own.
  EXPECT_EQ(Registry::instance().find("single")->predict(a100, p, s, {}), std::nullopt);
  EXPECT_EQ(Registry::instance().find("cpu")->predict(h200, p, s, {}), std::nullopt);
}

TEST(Backends, OfEmptyCallsTakeALaunchAtMost) {
  for (const char* backend : {"native", "cudnn", "single"}) {
    for (const auto& [batch, queries, keys] :
         {std::tuple{0, 128, 128}, std::tuple{2, 0, 128}, std::tuple{2, 128, 0}}) {
      const Problem p = problem_of(12, 4);
      EXPECT_LT(us_of(backend, p, shape_of(p, batch, queries, keys)), 12) << backend;
    }
  }
}

}  // namespace
}  // namespace batten::impl::cost
