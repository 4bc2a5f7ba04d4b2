// batten.hpp: that its words reach the C ABI, and that what comes back becomes C++.
#include <batten/batten.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capi/capi_test.hpp"

namespace batten::testing {
namespace {

class CppHeaderTest : public CapiTest {
 protected:
  static TensorView view(std::uintptr_t gib, std::initializer_list<std::int64_t> shape,
                         DType dtype = bf16) {
    return {reinterpret_cast<const void*>(gib << 30), dtype, shape, Device::cuda(0)};
  }
  static Attention attention() {
    return {{.dtype = bf16, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64}, Device::cuda(0)};
  }

  const TensorView q_ = view(1, {2, 5, 4, 64});
  const TensorView k_ = view(2, {2, 7, 2, 64});
  const TensorView v_ = view(3, {2, 7, 2, 64});
  const TensorView out_ = view(4, {2, 5, 4, 64});
  const TensorView lse_ = view(5, {2, 5, 4}, f32);
};

// ---- views
// --------------------------------------------------------------------------------------------

TEST_F(CppHeaderTest, AViewIsContiguousUnlessToldOtherwise) {
  EXPECT_EQ(q_.ndim(), 4);
  EXPECT_EQ(q_.dtype(), bf16);
  const std::int64_t expected[] = {5 * 256, 256, 64, 1};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(q_.stride(i), expected[i]);
  EXPECT_EQ(q_.shape(1), 5);
  const std::vector<std::int64_t> shape{3, 0, 8}, strides{100, 10, 1};
  const TensorView empty(nullptr, f32, shape, {});
  EXPECT_EQ(empty.stride(0), 8) << "a size of zero does not make strides zero";
  const TensorView strided(nullptr, f32, shape, strides);
  EXPECT_EQ(strided.stride(0), 100);
  EXPECT_EQ(strided.stride(1), 10);
}

TEST_F(CppHeaderTest, AViewHasOneToFourDimensions) {
  const std::vector<std::int64_t> five(5, 1), one(1, 1), two(2, 1);
  expect_error(ErrorCode::InvalidArgument, {"1 to 4 dimensions"},
               [&] { (void)TensorView(nullptr, f32, five, {}); });
  expect_error(ErrorCode::InvalidArgument, {"1 to 4 dimensions"},
               [&] { (void)TensorView(nullptr, f32, std::span<const std::int64_t>(), {}); });
  expect_error(ErrorCode::InvalidArgument, {"as many strides as dimensions"},
               [&] { (void)TensorView(nullptr, f32, two, one); });
}

TEST_F(CppHeaderTest, AVectorIsAViewOfHostLengths) {
  const std::vector<std::int32_t> lengths{1, 2, 3};
  const TensorView v = lengths;
  EXPECT_EQ(v.dtype(), DType::i32);
  EXPECT_EQ(v.ndim(), 1);
  EXPECT_EQ(v.shape(0), 3);
  EXPECT_EQ(v.data(), lengths.data());
  EXPECT_EQ(v.raw().device.type, BATTEN_CPU);
}

// ---- what is said
// -------------------------------------------------------------------------------------

TEST_F(CppHeaderTest, TheProblemArrives) {
  std::optional<impl::Problem> seen;
  native.answers().why_not_problem = [&](const impl::Problem& p, Device device) {
    seen = p;
    EXPECT_EQ(device, Device::cuda(1));
    return std::optional<std::string>{};
  };
  const Attention a({.dtype = f16,
                     .num_heads = 8,
                     .num_kv_heads = 2,
                     .head_dim = 64,
                     .head_dim_v = 32,
                     .out_dtype = f32,
                     .mask = Mask::causal_top_left,
                     .scale = 0.25,
                     .batch_invariant = true},
                    Device::cuda(1));
  const impl::Problem expected{.dtype = f16,
                               .out_dtype = f32,
                               .num_heads = 8,
                               .num_kv_heads = 2,
                               .head_dim = 64,
                               .head_dim_v = 32,
                               .mask = Mask::causal_top_left,
                               .batch_invariant = true};
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(a.device(), Device::cuda(1));
  EXPECT_EQ(a.problem().head_dim_v, 32);
}

TEST_F(CppHeaderTest, OptionsArrive) {
  FakeBackend& other = backends_.add("other");
  other.answers().why_not_shape = [](const impl::Problem&, const impl::Shape&, Device,
                                     const impl::BackendOptions& options) {
    EXPECT_EQ(options.num_threads, 3);
    return std::optional<std::string>{};
  };
  Attention a({.dtype = bf16, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64}, Device::cuda(0),
              {.backend = "other", .num_threads = 3});
  EXPECT_EQ(a.forward(q_, k_, v_, out_).backend(), "other");
}

TEST_F(CppHeaderTest, ADenseCallArrives) {
  const std::vector<std::int32_t> q_lengths{1, 5}, kv_lengths{7, 0};
  Attention a = attention();
  void* stream = devices_->create_stream();
  const Receipt receipt = a.forward(q_, k_, v_, out_,
                                    {.lse = lse_,
                                     .q_lengths = q_lengths,
                                     .kv_lengths = kv_lengths,
                                     .scale = 2.0,
                                     .padding_is_finite = true,
                                     .stream = stream,
                                     .workspace = reinterpret_cast<void*>(std::uintptr_t{0x1000}),
                                     .workspace_size = 512});
  ASSERT_EQ(native.runs().size(), 1u);
  const RecordedRun run = native.runs()[0];
  EXPECT_EQ(run.call.q, q_.data());
  EXPECT_EQ(run.call.k, k_.data());
  EXPECT_EQ(run.call.v, v_.data());
  EXPECT_EQ(run.call.out, out_.data());
  EXPECT_EQ(run.call.lse, lse_.data());
  EXPECT_EQ(run.call.q_lengths, q_lengths.data());
  EXPECT_EQ(run.call.kv_lengths, kv_lengths.data());
  EXPECT_EQ(run.call.scale, 2.0);
  EXPECT_EQ(run.call.stream, stream);
  EXPECT_TRUE(run.shape.padding_is_finite);
  EXPECT_EQ(run.workspace, reinterpret_cast<void*>(std::uintptr_t{0x1000}));
  EXPECT_EQ(receipt.backend(), "native");
  EXPECT_EQ(receipt.kernel(), "fake_kernel");
  EXPECT_EQ(receipt.tile(), "128x64");
  EXPECT_EQ(receipt.form(), "dense");
  EXPECT_EQ(receipt.splits(), 1);
  EXPECT_FALSE(receipt.plan_reused());
  EXPECT_EQ(receipt.reason(), "auto (default): first that serves this call");
}

TEST_F(CppHeaderTest, ExplainTakesCallsAsForwardDoes) {
  native.takes(12);
  const Problem problem{.dtype = f16, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  const Device device = Device::cuda(0);
  const TensorView q(nullptr, f16, {2, 3, 4, 64}, device), kv(nullptr, f16, {2, 5, 2, 64}, device);
  const std::string dense = explain(problem, device, q, kv, kv, q);
  EXPECT_NE(dense.find("native 12 us"), std::string::npos) << dense;
  EXPECT_EQ(dense.back(), '}');
  const TensorView packed_q(nullptr, f16, {8, 4, 64}, device),
      packed_kv(nullptr, f16, {9, 2, 64}, device);
  const std::vector<std::int32_t> offsets_q{0, 3, 8}, offsets_kv{0, 5, 9};
  const std::string packed =
      explain_packed(problem, device, packed_q, packed_kv, packed_kv, packed_q,
                     {.offsets_q = offsets_q, .offsets_kv = offsets_kv}, {.backend = "native"});
  EXPECT_NE(packed.find("asked for by option"), std::string::npos) << packed;
  EXPECT_THROW((void)explain(problem, device, q, kv, kv, q, {}, {}, "h300"), Error);
  EXPECT_TRUE(native.runs().empty());
}

TEST_F(CppHeaderTest, APackedCallArrives) {
  const std::vector<std::int32_t> offsets_q{0, 3, 8}, offsets_kv{0, 5, 9}, lengths{2, 5};
  const TensorView q = view(1, {8, 4, 64}), k = view(2, {9, 2, 64}), v = view(3, {9, 2, 64}),
                   out = view(4, {8, 4, 64}), lse = view(5, {8, 4}, f32);
  Attention a = attention();
  const PackedOptions options{.offsets_q = offsets_q,
                              .offsets_kv = offsets_kv,
                              .max_q = 6,
                              .max_kv = 7,
                              .lse = lse,
                              .q_lengths = lengths,
                              .scale = 0.5};
  (void)a.prepare_packed(q, k, v, out, options);
  EXPECT_TRUE(a.forward_packed(q, k, v, out, options).plan_reused());
  ASSERT_EQ(native.runs().size(), 1u);
  const RecordedRun run = native.runs()[0];
  EXPECT_TRUE(run.shape.packed);
  EXPECT_EQ(run.shape.max_q, 6);
  EXPECT_EQ(run.shape.max_kv, 7);
  EXPECT_EQ(run.call.offsets_q, offsets_q.data());
  EXPECT_EQ(run.call.offsets_kv, offsets_kv.data());
  EXPECT_EQ(run.call.q_lengths, lengths.data());
  EXPECT_EQ(run.call.lse, lse.data());
  EXPECT_EQ(run.call.scale, 0.5);
}

TEST_F(CppHeaderTest, PrepareOfAShapeIsThatOfItsContiguousTensors) {
  native.answers().plan_info.workspace_size = 4321;
  Attention a = attention();
  EXPECT_EQ(a.workspace_size({.batch = 2, .q = 5, .kv = 7, .lse = true}), 4321u);
  EXPECT_TRUE(a.forward(q_, k_, v_, out_, {.lse = lse_}).plan_reused());
  EXPECT_EQ(a.prepare({.batch = 2, .q = 5, .kv = 7}), 4321u);
  EXPECT_TRUE(a.forward(q_, k_, v_, out_).plan_reused());
  EXPECT_EQ(native.plans_built(), 2);
}

TEST_F(CppHeaderTest, PrepareOfAShapeKnowsTheProblemsDefaults) {
  Attention a({.dtype = bf16, .num_heads = 4, .head_dim = 64, .head_dim_v = 32, .out_dtype = f32},
              Device::cuda(0));
  (void)a.prepare({.batch = 1, .q = 3, .kv = 3});
  EXPECT_TRUE(a.forward(view(1, {1, 3, 4, 64}), view(2, {1, 3, 4, 64}), view(3, {1, 3, 4, 32}),
                        view(4, {1, 3, 4, 32}, f32))
                  .plan_reused());
}

// ---- errors and lifetime
// ------------------------------------------------------------------------------

TEST_F(CppHeaderTest, AStatusBecomesAnErrorWithItsCode) {
  Attention a = attention();
  for (const ErrorCode code :
       {ErrorCode::InvalidArgument, ErrorCode::Unsupported, ErrorCode::Unavailable,
        ErrorCode::OutOfMemory, ErrorCode::Device, ErrorCode::Internal}) {
    native.answers().on_plan = [&] { throw Error(code, "what, where, what to do"); };
    expect_error(code, {"what, where, what to do"}, [&] { (void)a.forward(q_, k_, v_, out_); });
    expect_error(code, {"what, where"}, [&] { (void)a.prepare(q_, k_, v_, out_); });
  }
  expect_error(ErrorCode::InvalidArgument, {"dtype"},
               [] { (void)Attention({.num_heads = 1, .head_dim = 8}, Device::cpu()); });
}

TEST_F(CppHeaderTest, AnAttentionMoves) {
  Attention a = attention();
  Attention b = std::move(a);
  EXPECT_EQ(a.handle(), nullptr);  // NOLINT: what a moved-from attention is
  EXPECT_EQ(b.forward(q_, k_, v_, out_).backend(), "native");
  expect_error(ErrorCode::InvalidArgument, {"attention: null pointer"},
               [&] { (void)a.forward(q_, k_, v_, out_); });
  a = attention();
  a = std::move(b);
  EXPECT_EQ(a.forward(q_, k_, v_, out_).backend(), "native");
}

TEST_F(CppHeaderTest, InfoIsTheWholeText) {
  const std::string text = info();
  EXPECT_EQ(text.find('\0'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(text)["batten"]["version"], batten_version());
}

TEST_F(CppHeaderTest, MergeAndTrimThrowToo) {
  float value = 0;
  const TensorView t(&value, f32, {1});
  expect_error(ErrorCode::InvalidArgument, {"merge"}, [&] { merge(t, t, t, t); });
  EXPECT_NO_THROW(trim());
}

}  // namespace
}  // namespace batten::testing
