// The parts of `batten tune` that need no GPU: what is measured, the fit, and which calls count. A
// model with known constants stands for the device.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "cost/document.hpp"
#include "support/tune_runner.hpp"

namespace batten::tools {
namespace {

constexpr int kMultiprocessors = 132;

// A card whose kernels take exactly these times.
cost::Constants truth(const TuneCall& call) {
  cost::Constants c;
  c.kernel = call.kernel;
  c.head_dim = call.head_dim;
  c.causal = call.causal();
  c.launch_us = 2;
  if (call.kernel == "cudnn:decode") {
    c.launch_us = 7;
    c.gbps = 4200;
    return c;
  }
  c.tile_us = call.causal() ? 2.5 : 1.5;
  c.block_us = call.head_dim / 100.0;
  c.tflops = 600;
  c.gbps = 4200;
  return c;
}

// What dealing tiles of 128 x 128 out in rounds gives.
cost::Work work_of(const TuneCall& call) {
  cost::Work w;
  w.flops = 4.0 * static_cast<double>(call.batch * call.queries * call.keys) * call.num_heads *
            call.head_dim / (call.causal() ? 2 : 1);
  w.bytes = 4.0 * static_cast<double>(call.batch) *
            static_cast<double>(call.queries * call.num_heads + call.keys * call.num_kv_heads) *
            call.head_dim;
  if (call.kernel == "cudnn:decode") return w;
  const double tiles = std::ceil(static_cast<double>(call.queries) / 128) *
                       static_cast<double>(call.batch) * call.num_heads;
  w.starts = std::ceil(tiles / kMultiprocessors);
  w.blocks = w.starts * std::ceil(static_cast<double>(call.keys) / 128) / (call.causal() ? 2 : 1);
  return w;
}

double time_of(const TuneCall& call) {
  return cost::predict({truth(call), cost::Origin::measured}, work_of(call)).us;
}

TuneSources exact_card() {
  return {.work = [](const TuneCall& call) { return std::optional(work_of(call)); },
          .time = [](const TuneCall& call) { return std::optional(time_of(call)); },
          .progress = [](std::size_t, std::size_t, const TuneCall&) {}};
}

TEST(TunePlan, MeasuresEveryKernelOften) {
  const std::vector<TuneCall> calls = tune_calls(kMultiprocessors);
  for (const char* absent : {"native", "native:sm80"}) {
    const auto served =
        std::ranges::count_if(calls, [&](const TuneCall& call) { return call.kernel != absent; });
    EXPECT_LT(served, 400) << "under a minute; a card has one family of native kernels";
  }
  std::set<std::string> kernels;
  for (const TuneCall& call : calls) {
    kernels.insert(call.kernel + (call.causal() ? " causal" : ""));
    EXPECT_GE(call.batch * call.queries * call.keys, 1) << call.str();
    EXPECT_EQ(call.num_heads % call.num_kv_heads, 0) << call.str();
    const double flops = work_of(call).flops;
    EXPECT_TRUE(call.purpose != Purpose::costs || flops < 3e11) << call.str();
    EXPECT_TRUE(call.purpose != Purpose::power || flops > 2e11) << call.str();
  }
  for (const char* kernel : {"native", "native causal", "native:sm80", "cudnn", "cudnn causal",
                             "cudnn:packed", "cudnn:decode", "single"})
    EXPECT_TRUE(kernels.contains(kernel)) << kernel;
}

TEST(TunePlan, SuitsCardsOfEverySize) {
  for (const int multiprocessors : {1, 20, 84, 108, 132, 160}) {
    for (const TuneCall& call : tune_calls(multiprocessors))
      EXPECT_GE(call.queries, 1) << multiprocessors;
  }
}

TEST(TunePlan, TheGridHasNoCallTwice) {
  const auto shapes = exhaustive_shapes();
  EXPECT_GT(shapes.size(), 300u);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(shapes[i], shapes[j]) << i << " " << j;
  }
}

TEST(LeastSquares, FindsWhatMadeTheRows) {
  // 2 x + 5 y, rows divided by their values.
  std::vector<std::vector<double>> rows;
  for (const auto& [x, y] : {std::pair{1.0, 1.0}, std::pair{1.0, 4.0}, std::pair{3.0, 2.0}})
    rows.push_back({x / (2 * x + 5 * y), y / (2 * x + 5 * y)});
  const std::vector<double> found = least_squares(rows);
  EXPECT_NEAR(found[0], 2, 1e-9);
  EXPECT_NEAR(found[1], 5, 1e-9);
}

TEST(LeastSquares, HasNoNegativeAnswer) {
  // Best without a bound: 10 y - 4 x.
  std::vector<std::vector<double>> rows;
  for (const auto& [x, y] : {std::pair{1.0, 1.0}, std::pair{2.0, 1.0}, std::pair{1.0, 3.0}})
    rows.push_back({x / (10 * y - 4 * x), y / (10 * y - 4 * x)});
  for (const double value : least_squares(rows)) EXPECT_GE(value, 0);
}

TEST(LeastSquares, LeavesOutWhatTellsNothing) {
  const std::vector<std::vector<double>> rows{{0.5, 0, 0.5}, {0.25, 0, 0.25}};
  const std::vector<double> found = least_squares(rows);  // column 1 is 0, columns 0 and 2 alike
  EXPECT_EQ(found[1], 0);
  EXPECT_NEAR(found[0] + found[2], 2.4, 1e-9);  // 0.75 / 0.3125
  EXPECT_TRUE(least_squares({}).empty());
}

TEST(Fit, GivesTheCardsConstantsBack) {
  const auto kernels = fit_kernels(measure_calls(tune_calls(kMultiprocessors), exact_card()));
  ASSERT_GT(kernels.size(), 10u);
  for (const TunedKernel& kernel : kernels) {
    const cost::Constants& found = kernel.fit.constants;
    const cost::Constants expected = truth(kernel.samples.front().call);
    EXPECT_EQ(found.str(), expected.str());
    EXPECT_NEAR(found.launch_us, expected.launch_us, 0.05) << found.str();
    EXPECT_NEAR(found.tile_us, expected.tile_us, 0.05) << found.str();
    EXPECT_NEAR(found.block_us, expected.block_us, 0.01) << found.str();
    EXPECT_LT(kernel.fit.worst_error, 0.02) << found.str();
    EXPECT_LE(kernel.fit.median_error, kernel.fit.worst_error);
    EXPECT_EQ(kernel.fit.fitted_us.size(), kernel.samples.size());
  }
}

TEST(Fit, NoiseBecomesErrorsNotNonsense) {
  TuneSources noisy = exact_card();
  int i = 0;
  noisy.time = [&i](const TuneCall& call) {
    const double noise = (++i * 7919 % 101 - 50) / 50.0 * 0.03;  // 3 % either way
    return std::optional(time_of(call) * (1 + noise));
  };
  for (const TunedKernel& kernel :
       fit_kernels(measure_calls(tune_calls(kMultiprocessors), noisy))) {
    EXPECT_LT(kernel.fit.median_error, 0.04) << kernel.fit.constants.str();
    EXPECT_LT(kernel.fit.worst_error, 0.15) << kernel.fit.constants.str();
    EXPECT_GT(kernel.fit.worst_error, 0.001) << kernel.fit.constants.str();
    for (const auto& [name, member] : cost::kConstantMembers)
      EXPECT_GE(kernel.fit.constants.*member, 0) << name;
  }
}

// The i-th of some calls that tell all costs of divided tiles apart; not timed yet.
TuneSample divided_sample(int i) {
  TuneSample s;
  s.call = {.backend = "native", .kernel = "native", .batch = 1, .queries = 1, .keys = 1};
  s.work = {.launches = 1,
            .starts = 1.0 + i % 3,
            .blocks = 4.0 * i,
            .parts = 1.0 * (i % 2),
            .merges = 2.0 * (i % 4)};
  return s;
}

TEST(Fit, OfDividedTilesKnowsPartsAndMerges) {
  std::vector<TuneSample> samples;
  for (int i = 1; i <= 12; ++i) {
    TuneSample s = divided_sample(i);
    s.measured_us =
        3 + s.work.starts * 1.5 + s.work.blocks * 1.25 + s.work.parts * 2 + s.work.merges * 0.5;
    samples.push_back(s);
  }
  const auto result = fit(samples, 1234);
  ASSERT_TRUE(result);
  EXPECT_NEAR(result->constants.part_us, 2, 1e-6);
  EXPECT_NEAR(result->constants.merge_us, 0.5, 1e-6);
  EXPECT_NEAR(result->constants.launch_us, 3, 1e-6);
  EXPECT_EQ(result->constants.gbps, 1234) << "what other kernels showed";
}

// The fit is the inverse of the prediction, also where keys arrive more slowly than tiles take.
TEST(Fit, OfMemoryIsWithoutPartsAndMerges) {
  const cost::Constants truth = {.kernel = "native",
                                 .head_dim = 128,
                                 .launch_us = 3,
                                 .tile_us = 1.5,
                                 .block_us = 1.25,
                                 .part_us = 2,
                                 .merge_us = 0.5,
                                 .gbps = 4000};
  std::vector<TuneSample> samples;
  for (int i = 1; i <= 12; ++i) samples.push_back(divided_sample(i));
  TuneSample memory = divided_sample(1);
  memory.call.purpose = Purpose::memory;
  memory.work.merges = 20;
  memory.work.bytes = 4e8;
  samples.push_back(memory);
  for (TuneSample& s : samples)
    s.measured_us = cost::predict({truth, cost::Origin::measured}, s.work).us;
  const auto result = fit(samples, 0);
  ASSERT_TRUE(result);
  EXPECT_NEAR(result->constants.gbps, 4000, 1e-3);
  EXPECT_LT(result->worst_error, 1e-6);
}

TEST(Fit, NeedsACallThatTellsOfCosts) {
  TuneSample power;
  power.call.purpose = Purpose::power;
  power.measured_us = 100;
  EXPECT_FALSE(fit(std::vector{power}, 0));
  EXPECT_TRUE(fit_kernels({power}).empty());
}

TEST(MeasureCalls, LeavesOutWhatIsNotServed) {
  TuneSources sources = exact_card();
  sources.work = [](const TuneCall& call) -> std::optional<cost::Work> {
    if (call.backend == "native") return std::nullopt;
    return work_of(call);
  };
  int timed = 0;
  sources.time = [&](const TuneCall& call) -> std::optional<double> {
    EXPECT_NE(call.backend, "native") << "was measured";
    ++timed;
    if (call.kernel == "single") return std::nullopt;
    return 10;
  };
  std::size_t told = 0;
  sources.progress = [&](std::size_t, std::size_t, const TuneCall&) { ++told; };
  const std::vector<TuneCall> calls = tune_calls(kMultiprocessors);
  const std::vector<TuneSample> samples = measure_calls(calls, sources);
  EXPECT_EQ(told, calls.size());
  EXPECT_LT(samples.size(), static_cast<std::size_t>(timed));
  for (const TuneSample& sample : samples) EXPECT_EQ(sample.call.kernel.substr(0, 5), "cudnn");
}

Json answer(double native, double cudnn) {
  return Json::parse(fmt::format(
      R"({{"flops": 8, "bytes": 9, "candidates": [
        {{"backend": "native", "serves": true, "predicted_us": {}, "kernel": "native d128",
          "terms": [{{"name": "launches", "count": 2}}, {{"name": "tiles", "count": 3}},
                    {{"name": "key blocks", "count": 40}}, {{"name": "parts", "count": 5}},
                    {{"name": "merges", "count": 6}}]}},
        {{"backend": "cudnn", "serves": true, "predicted_us": {}, "kernel": "cudnn:packed d128"}},
        {{"backend": "single", "serves": false, "why": "no"}}]}})",
      native, cudnn));
}

TEST(Work, IsWhatTheLibrarySays) {
  TuneCall call{.backend = "native", .kernel = "native"};
  const auto work = work_in(answer(1, 2), call);
  ASSERT_TRUE(work);
  EXPECT_EQ(work->launches, 2);
  EXPECT_EQ(work->starts, 3);
  EXPECT_EQ(work->blocks, 40);
  EXPECT_EQ(work->parts, 5);
  EXPECT_EQ(work->merges, 6);
  EXPECT_EQ(work->flops, 8);
  EXPECT_EQ(work->bytes, 9);
  call = {.backend = "cudnn", .kernel = "cudnn"};
  EXPECT_FALSE(work_in(answer(1, 2), call)) << "of another kernel";
  call = {.backend = "cudnn:packed", .kernel = "cudnn:packed"};
  EXPECT_TRUE(work_in(answer(1, 2), call));
  call = {.backend = "single", .kernel = "single"};
  EXPECT_FALSE(work_in(answer(1, 2), call)) << "not served";
  call = {.backend = "other", .kernel = "other"};
  EXPECT_FALSE(work_in(answer(1, 2), call));
}

TEST(MeasureShapes, SkipsBackendsThatAreFarSlower) {
  const std::vector<cost::MeasuredShape> shapes(3, exhaustive_shapes().front());
  TuneSources sources = exact_card();
  sources.time = [](const TuneCall& call) {
    EXPECT_NE(call.backend, "single") << "it does not serve the call";
    return std::optional(call.backend == "native" ? 10.0 : 20.0);
  };
  const auto measured = [&](double native, double cudnn) {
    return measure_shapes(
               shapes, {"native", "cudnn", "single"},
               [&](const TuneCall& call) {
                 EXPECT_EQ(call.backend, "");
                 return answer(native, cudnn);
               },
               sources)
        .at(2);
  };
  EXPECT_EQ(measured(10, 20).us.size(), 2u);
  EXPECT_EQ(measured(10, 20).of("cudnn"), 20);
  EXPECT_EQ(measured(10, 20).shape, shapes[2]);
  EXPECT_EQ(measured(10, 50).us.size(), 1u);
  EXPECT_EQ(measured(50, 10).of("native"), std::nullopt);
}

TEST(Tuned, ConstantsSurviveTheirDocument) {
  cost::Document d;
  d.card = {.name = "X", .arch = 90, .multiprocessors = kMultiprocessors};
  for (const TunedKernel& k :
       fit_kernels(measure_calls(tune_calls(kMultiprocessors), exact_card())))
    d.kernels.push_back(k.fit.constants);
  const cost::Document back = cost::parse_document(cost::to_json(d));
  ASSERT_EQ(back.kernels.size(), d.kernels.size());
  for (std::size_t i = 0; i < d.kernels.size(); ++i)
    EXPECT_NEAR(back.kernels[i].block_us, d.kernels[i].block_us, 1e-3);
}

}  // namespace
}  // namespace batten::tools
