// When calls of attention objects share a plan, and that each runs with its own shape and values.
#include <functional>
#include <memory>
#include <vector>

#include "dispatch/dispatch_test.hpp"
#include "dispatch/plan_cache.hpp"

namespace batten::testing {
namespace {

class PlanReuseTest : public DispatchTest {
 protected:
  FakeBackend& native = backends_.add("native");
  FakeBackend& cudnn = backends_.add("cudnn");
};

TEST_F(PlanReuseTest, AnEqualCallReusesThePlan) {
  TestCall call(good_problem(), kGpu);
  auto a = attention();
  EXPECT_EQ(forward(a, call.raw).plan_reused, 0);
  EXPECT_EQ(forward(a, call.raw).plan_reused, 1);
  EXPECT_EQ(native.plans_built(), 1);
  EXPECT_EQ(native.runs().size(), 2u);
}

TEST_F(PlanReuseTest, LayersShareTheirPlans) {
  TestCall call(good_problem(), kGpu);
  auto first = attention();
  auto second = attention();
  EXPECT_EQ(forward(first, call.raw).plan_reused, 0);
  EXPECT_EQ(forward(second, call.raw).plan_reused, 1);
  EXPECT_EQ(native.plans_built(), 1);
}

TEST_F(PlanReuseTest, APreparedPlanIsReused) {
  TestCall call(good_problem(), kGpu);
  auto a = attention();
  (void)a.prepare(call.raw);
  EXPECT_EQ(native.plans_built(), 1);
  EXPECT_TRUE(native.runs().empty());
  EXPECT_EQ(forward(a, call.raw).plan_reused, 1);
  EXPECT_EQ(native.plans_built(), 1);
}

TEST_F(PlanReuseTest, WhatAPlanDoesNotBakeInMayChange) {
  TestCall call(good_problem(), kGpu);
  call.with_lse().with_kv_lengths({3, 7});
  auto a = attention();
  (void)forward(a, call.raw);
  call.raw.has_scale = 1;
  call.raw.scale = 0.5;
  call.kv_length_values = {1, 2};
  call.kv_lengths.data = call.kv_length_values.data();
  call.raw.stream = devices_->create_stream();
  for (batten_tensor* t : {&call.q, &call.k, &call.v, &call.out, &call.lse}) {
    t->data = static_cast<char*>(t->data) + 4096;
  }
  EXPECT_EQ(forward(a, call.raw).plan_reused, 1);
  const RecordedRun run = native.runs().back();
  EXPECT_EQ(run.call.scale, 0.5);
  EXPECT_EQ(run.call.q, call.q.data);
  EXPECT_EQ(run.call.k, call.k.data);
  EXPECT_EQ(run.call.v, call.v.data);
  EXPECT_EQ(run.call.out, call.out.data);
  EXPECT_EQ(run.call.lse, call.lse.data);
  EXPECT_EQ(run.call.kv_lengths, call.kv_length_values.data());
  EXPECT_EQ(run.call.stream, call.raw.stream);
}

// ---- calls that need plans of their own
// ---------------------------------------------------------------

using Make = std::function<std::unique_ptr<TestCall>()>;

std::unique_ptr<TestCall> dense(TestCall::Size size = {}) {
  return std::make_unique<TestCall>(good_problem(), kGpu, size);
}
std::unique_ptr<TestCall> packed(std::vector<std::int32_t> q, std::vector<std::int32_t> kv) {
  return TestCall::packed(good_problem(), kGpu, std::move(q), std::move(kv));
}

TEST_F(PlanReuseTest, CallsThatDifferInAnythingABackendMayBakeInDoNotShare) {
  const std::pair<const char*, Make> all[] = {
      {"base", [] { return dense(); }},
      {"batch",
       [] {
         return dense({3, 5, 7});
       }},
      {"Sq",
       [] {
         return dense({2, 6, 7});
       }},
      {"Skv",
       [] {
         return dense({2, 5, 8});
       }},
      {"lse",
       [] {
         auto c = dense();
         c->with_lse();
         return c;
       }},
      {"q_lengths",
       [] {
         auto c = dense();
         c->with_q_lengths({1, 2});
         return c;
       }},
      {"kv_lengths",
       [] {
         auto c = dense();
         c->with_kv_lengths({1, 2});
         return c;
       }},
      {"kv_lengths on the device",
       [] {
         auto c = dense();
         c->with_kv_lengths({1, 2}, true);
         return c;
       }},
      {"padding_is_finite",
       [] {
         auto c = dense();
         c->raw.padding_is_finite = 1;
         return c;
       }},
      {"stride of q",
       [] {
         auto c = dense();
         c->q.strides[1] += 64;
         c->q.strides[0] = 5 * c->q.strides[1];
         return c;
       }},
      {"stride of k",
       [] {
         auto c = dense();
         c->k.strides[0] += 64;
         return c;
       }},
      {"stride of v",
       [] {
         auto c = dense();
         c->v.strides[0] = 0;
         return c;
       }},
      {"stride of out",
       [] {
         auto c = dense();
         c->out.strides[0] += 64;
         return c;
       }},
      {"stride of lse",
       [] {
         auto c = dense();
         c->with_lse();
         c->lse.strides[0] += 1;
         return c;
       }},
      {"packed",
       [] {
         return packed({0, 5, 9}, {0, 7, 14});
       }},
      {"packed, more keys",
       [] {
         return packed({0, 5, 9}, {0, 7, 15});
       }},
      {"packed, another bound",
       [] {
         auto c = packed({0, 5, 9}, {0, 7, 14});
         c->raw.max_q = 9;
         return c;
       }},
      {"packed on the device",
       [] {
         auto c = packed({0, 5, 9}, {0, 7, 14});
         c->offsets_on_device(5, 7);
         return c;
       }},
  };
  auto a = attention();
  int built = 0;
  for (const auto& [name, make] : all) {
    const auto call = make();
    EXPECT_EQ(forward(a, call->raw).plan_reused, 0) << name;
    EXPECT_EQ(native.plans_built(), ++built) << name;
  }
  // More shapes than an attention remembers by itself: the cache still has them all.
  for (int round = 0; round < 2; ++round) {
    int plan = 0;
    for (const auto& [name, make] : all) {
      const auto call = make();
      EXPECT_EQ(forward(a, call->raw).plan_reused, 1) << name;
      EXPECT_EQ(native.runs().back().plan, ++plan) << name;
    }
  }
  EXPECT_EQ(native.plans_built(), built);
}

TEST_F(PlanReuseTest, ProblemsDevicesThreadsFormsAndBackendsDoNotShare) {
  native.answers().forms = {"dense"};
  struct Layer {
    const char* name;
    batten_problem problem = good_problem();
    Device device = kGpu;
    const char* backend = "native";
    int num_threads = 0;
  };
  std::vector<Layer> layers{{"base"}};
  const auto add = [&](const char* name, const std::function<void(Layer&)>& change) {
    layers.push_back({name});
    change(layers.back());
  };
  add("dtype", [](Layer& l) { l.problem.dtype = BATTEN_F16; });
  add("out_dtype", [](Layer& l) { l.problem.out_dtype = BATTEN_F32; });
  add("num_heads", [](Layer& l) { l.problem.num_heads = 8; });
  add("num_kv_heads", [](Layer& l) { l.problem.num_kv_heads = 4; });
  add("head_dim", [](Layer& l) { l.problem.head_dim = 128; });
  add("head_dim_v", [](Layer& l) { l.problem.head_dim_v = 128; });
  add("mask", [](Layer& l) { l.problem.mask = BATTEN_MASK_CAUSAL; });
  add("other mask", [](Layer& l) { l.problem.mask = BATTEN_MASK_CAUSAL_TOP_LEFT; });
  add("batch_invariant", [](Layer& l) { l.problem.batch_invariant = 1; });
  add("device", [](Layer& l) { l.device = Device::cuda(1); });
  add("CPU", [](Layer& l) { l.device = Device::cpu(); });
  add("threads", [](Layer& l) { l.num_threads = 2; });
  add("form", [](Layer& l) { l.backend = "native:dense"; });
  add("backend", [](Layer& l) { l.backend = "cudnn"; });
  for (int round = 0; round < 2; ++round) {
    for (const Layer& layer : layers) {
      impl::Attention a(layer.problem, layer.device, options_of(layer.backend, layer.num_threads));
      TestCall call(layer.problem, layer.device);
      EXPECT_EQ(forward(a, call.raw).plan_reused, round) << layer.name;
    }
  }
  EXPECT_EQ(impl::PlanCache::instance().size(), layers.size());
}

TEST_F(PlanReuseTest, OneProblemSaidInTwoWaysShares) {
  batten_problem given = good_problem(DType::bf16, 4, 4, 64);
  given.out_dtype = BATTEN_BF16;
  given.head_dim_v = 64;
  given.has_scale = 1;
  given.scale = 0.3;  // a value of the calls, not of the plan
  batten_problem implied = good_problem(DType::bf16, 4, 0, 64);
  impl::Attention a(given, kGpu, options_of(nullptr));
  impl::Attention b(implied, kGpu, options_of("native"));
  TestCall call(given, kGpu);
  EXPECT_EQ(forward(a, call.raw).plan_reused, 0);
  EXPECT_EQ(forward(b, call.raw).plan_reused, 1);
  EXPECT_EQ(native.runs()[0].call.scale, 0.3);
  EXPECT_EQ(native.runs()[1].call.scale, 0.125);
}

// ---- plan_key
// -----------------------------------------------------------------------------------------

TEST_F(PlanReuseTest, CallsThatTheBackendCallsEqualShareAndRunWithTheirOwnShape) {
  native.answers().plan_key = [](const impl::Problem&, const impl::Shape& shape) {
    impl::Shape key = shape;
    key.max_q = (shape.max_q + 63) / 64 * 64;
    key.tokens_q = 0;
    key.q.batch = key.out.batch = 0;
    return key;
  };
  auto a = attention();
  TestCall five(good_problem(), kGpu, {2, 5, 7});
  TestCall six(good_problem(), kGpu, {2, 6, 7});
  TestCall longer(good_problem(), kGpu, {2, 65, 7});
  EXPECT_EQ(forward(a, five.raw).plan_reused, 0);
  EXPECT_EQ(forward(a, six.raw).plan_reused, 1);
  EXPECT_EQ(forward(a, longer.raw).plan_reused, 0);
  ASSERT_EQ(native.planned().size(), 2u);
  EXPECT_EQ(native.planned()[0].max_q, 64) << "plans are built for the key";
  EXPECT_EQ(native.planned()[1].max_q, 128);
  ASSERT_EQ(native.runs().size(), 3u);
  EXPECT_EQ(native.runs()[0].shape.max_q, 5) << "and run with the call's shape";
  EXPECT_EQ(native.runs()[1].shape.max_q, 6);
  EXPECT_EQ(native.runs()[1].shape.q.batch, 6 * 256);
  EXPECT_EQ(native.runs()[1].plan, 1);
  EXPECT_EQ(native.runs()[2].shape.max_q, 65);
  EXPECT_EQ(native.runs()[2].plan, 2);
}

TEST_F(PlanReuseTest, ABackendIsAskedAboutTheCallsShapeNotTheKeys) {
  native.answers().plan_key = [](const impl::Problem&, const impl::Shape& shape) {
    impl::Shape key = shape;
    key.max_q = 64;
    return key;
  };
  native.answers().why_not_shape = [](const impl::Problem&, const impl::Shape& shape, Device,
                                      const impl::BackendOptions&) {
    return shape.max_q == 6 ? std::optional<std::string>("six") : std::nullopt;
  };
  auto a = attention("native");
  TestCall five(good_problem(), kGpu, {2, 5, 7});
  TestCall six(good_problem(), kGpu, {2, 6, 7});
  EXPECT_NO_THROW((void)forward(a, five.raw));
  expect_error(ErrorCode::Unsupported, {"six"}, [&] { (void)forward(a, six.raw); });
}

// ---- lifetime
// -----------------------------------------------------------------------------------------

TEST_F(PlanReuseTest, AnAttentionKeepsItsLastPlansThroughAnEviction) {
  // A denoising loop alternates between a few shapes.
  auto a = attention();
  const auto run_all = [&] {
    for (std::int64_t length = 1; length <= 8; ++length) {
      TestCall call(good_problem(), kGpu, {2, length, 7});
      (void)forward(a, call.raw);
      EXPECT_EQ(native.runs().back().plan, length);
    }
  };
  run_all();
  impl::PlanCache::instance().clear();
  EXPECT_EQ(native.plans_alive(), 8);
  run_all();
  EXPECT_EQ(native.plans_built(), 8);
}

TEST_F(PlanReuseTest, APlanThatIsEvictedInUseFinishesItsCall) {
  TestCall call(good_problem(), kGpu);
  native.answers().on_run = [&](const RecordedRun&) {
    impl::PlanCache::instance().clear();
    EXPECT_EQ(native.plans_alive(), 1);
  };
  {
    auto a = attention();
    (void)forward(a, call.raw);
  }
  EXPECT_EQ(native.plans_alive(), 0) << "and goes with the last who holds it";
}

TEST_F(PlanReuseTest, AFailedPlanIsTriedAgain) {
  TestCall call(good_problem(), kGpu);
  native.answers().on_plan = [] { throw Error(ErrorCode::OutOfMemory, "no room"); };
  auto a = attention("native");
  for (int i = 1; i <= 2; ++i) {
    expect_error(ErrorCode::OutOfMemory, {"no room"}, [&] { (void)forward(a, call.raw); });
    EXPECT_EQ(native.plans_built(), i);
  }
  native.answers().on_plan = nullptr;
  EXPECT_EQ(forward(a, call.raw).plan_reused, 0);
  EXPECT_EQ(forward(a, call.raw).plan_reused, 1);
}

}  // namespace
}  // namespace batten::testing
