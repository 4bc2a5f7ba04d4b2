// Good problems and calls in the library's own words.
#include "problem/validate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "fakes/test_call.hpp"
#include "problem/problem_test.hpp"

namespace batten::impl {
namespace {

using testing::good_problem;
using testing::TestCall;

// ---- problems -----------------------------------------------------------------------------------

TEST(ValidateProblem, ResolvesItsDefaults) {
  batten_problem raw = good_problem(DType::f16, 12, 0, 128);
  const ValidatedProblem v = validate_problem(raw);
  const Problem expected{.dtype = DType::f16,
                         .out_dtype = DType::f16,
                         .num_heads = 12,
                         .num_kv_heads = 12,
                         .head_dim = 128,
                         .head_dim_v = 128,
                         .mask = Mask::none,
                         .batch_invariant = false};
  EXPECT_EQ(v.problem, expected);
  EXPECT_DOUBLE_EQ(v.scale, 1.0 / std::sqrt(128.0));
}

TEST(ValidateProblem, KeepsWhatIsGiven) {
  batten_problem raw = good_problem(DType::bf16, 12, 4, 128);
  raw.out_dtype = BATTEN_F32;
  raw.head_dim_v = 64;
  raw.mask = BATTEN_MASK_CAUSAL_TOP_LEFT;
  raw.batch_invariant = 1;
  raw.has_scale = 1;
  raw.scale = -2.5;
  const ValidatedProblem v = validate_problem(raw);
  const Problem expected{.dtype = DType::bf16,
                         .out_dtype = DType::f32,
                         .num_heads = 12,
                         .num_kv_heads = 4,
                         .head_dim = 128,
                         .head_dim_v = 64,
                         .mask = Mask::causal_top_left,
                         .batch_invariant = true};
  EXPECT_EQ(v.problem, expected);
  EXPECT_EQ(v.scale, -2.5);
}

TEST(ValidateProblem, TheDefaultScaleIsThatOfTheQueriesHeadDim) {
  batten_problem raw = good_problem(DType::f32, 1, 1, 64);
  raw.head_dim_v = 256;
  EXPECT_DOUBLE_EQ(validate_problem(raw).scale, 0.125);
}

TEST(ValidateProblem, AnyScaleThatIsFiniteInFloatIsLegal) {
  for (const double scale : {0.0, -1.0, 3.4e38, -3.4e38, -1e-300}) {
    batten_problem raw = good_problem();
    raw.has_scale = 1;
    raw.scale = scale;
    EXPECT_EQ(validate_problem(raw).scale, scale);
  }
}

TEST(ValidateProblem, AScaleThatIsNotGivenIsNotRead) {
  batten_problem raw = good_problem(DType::bf16, 4, 2, 64);
  raw.scale = std::nan("");
  EXPECT_DOUBLE_EQ(validate_problem(raw).scale, 0.125);
}

TEST(ValidateProblem, TheLimitsAreLegal) {
  EXPECT_NO_THROW((void)validate_problem(good_problem(DType::f32, 1, 1, 1)));
  EXPECT_NO_THROW((void)validate_problem(good_problem(DType::f32, 1 << 16, 1, 4096)));
  EXPECT_NO_THROW((void)validate_problem(good_problem(DType::f32, 7, 7, 8)));
  batten_problem raw = good_problem(DType::f32);
  raw.out_dtype = BATTEN_F32;
  EXPECT_NO_THROW((void)validate_problem(raw));
}

TEST(ValidateProblem, EveryMaskOfTheHeaderIsKnown) {
  for (const int mask : {BATTEN_MASK_NONE, BATTEN_MASK_CAUSAL, BATTEN_MASK_CAUSAL_TOP_LEFT}) {
    batten_problem raw = good_problem();
    raw.mask = mask;
    EXPECT_EQ(static_cast<int>(validate_problem(raw).problem.mask), mask);
  }
}

// ---- calls: what is carried over
// ------------------------------------------------------------------

TEST(ValidateCall, CarriesADenseCallOver) {
  TestCall call(good_problem(DType::bf16, 4, 2, 64));
  call.with_lse();
  call.raw.padding_is_finite = 1;
  const auto [shape, c, workspace, workspace_size] = validated(call);
  EXPECT_EQ(shape.batch, 2);
  EXPECT_EQ(shape.max_q, 5);
  EXPECT_EQ(shape.max_kv, 7);
  EXPECT_EQ(shape.tokens_q, 10);
  EXPECT_EQ(shape.tokens_kv, 14);
  EXPECT_FALSE(shape.packed);
  EXPECT_TRUE(shape.lse);
  EXPECT_TRUE(shape.padding_is_finite);
  EXPECT_EQ(shape.q_lengths, Source::none);
  EXPECT_EQ(shape.kv_lengths, Source::none);
  EXPECT_EQ(shape.offsets_q, Source::none);
  EXPECT_EQ(shape.offsets_kv, Source::none);
  EXPECT_EQ(shape.q, (Layout{5 * 256, 256, 64}));
  EXPECT_EQ(shape.k, (Layout{7 * 128, 128, 64}));
  EXPECT_EQ(shape.v, (Layout{7 * 128, 128, 64}));
  EXPECT_EQ(shape.out, (Layout{5 * 256, 256, 64}));
  EXPECT_EQ(shape.lse_layout, (Layout{5 * 4, 4, 1}));
  EXPECT_EQ(c.q, call.q.data);
  EXPECT_EQ(c.k, call.k.data);
  EXPECT_EQ(c.v, call.v.data);
  EXPECT_EQ(c.out, call.out.data);
  EXPECT_EQ(c.lse, call.lse.data);
  EXPECT_EQ(c.q_lengths, nullptr);
  EXPECT_EQ(c.offsets_q, nullptr);
  EXPECT_DOUBLE_EQ(c.scale, 0.125);
  EXPECT_EQ(workspace, nullptr);
  EXPECT_EQ(workspace_size, 0u);
}

TEST(ValidateCall, CarriesAPackedCallOver) {
  const auto call = TestCall::packed(good_problem(), Device::cpu(), {0, 3, 8}, {1, 5, 11});
  const auto [shape, c, workspace, workspace_size] = validated(*call);
  EXPECT_TRUE(shape.packed);
  EXPECT_EQ(shape.batch, 2);
  EXPECT_EQ(shape.max_q, 5);
  EXPECT_EQ(shape.max_kv, 6);
  EXPECT_EQ(shape.tokens_q, 8);
  EXPECT_EQ(shape.tokens_kv, 11);
  EXPECT_FALSE(shape.lse);
  EXPECT_EQ(shape.offsets_q, Source::host);
  EXPECT_EQ(shape.offsets_kv, Source::host);
  EXPECT_EQ(shape.q, (Layout{0, 256, 64}));
  EXPECT_EQ(shape.k, (Layout{0, 128, 64}));
  EXPECT_EQ(c.offsets_q, call->offset_q_values.data());
  EXPECT_EQ(c.offsets_kv, call->offset_kv_values.data());
  EXPECT_EQ(c.q, call->q.data);
}

TEST(ValidateCall, KeepsWhereArraysLive) {
  const auto call = TestCall::packed(good_problem(), Device::cuda(1), {0, 3, 8}, {1, 5, 11});
  call->offsets_on_device(6, 9);
  call->with_q_lengths({1, 2}).with_kv_lengths({3, 4}, /*on_device=*/true);
  const Shape shape = validated(*call).shape;
  EXPECT_EQ(shape.offsets_q, Source::device);
  EXPECT_EQ(shape.offsets_kv, Source::device);
  EXPECT_EQ(shape.q_lengths, Source::host);
  EXPECT_EQ(shape.kv_lengths, Source::device);
  EXPECT_EQ(shape.max_q, 6);
  EXPECT_EQ(shape.max_kv, 9);
}

TEST(ValidateCall, DeviceArraysAreNotReadByTheHost) {
  const auto call = TestCall::packed(good_problem(), Device::cuda(0), {0, 3, 8}, {1, 5, 11});
  call->offsets_on_device(6, 9);
  call->with_q_lengths({1, 2}, true).with_kv_lengths({3, 4}, true);
  for (batten_tensor* t :
       {&call->offsets_q, &call->offsets_kv, &call->q_lengths, &call->kv_lengths}) {
    t->data = reinterpret_cast<void*>(std::uintptr_t{0x1000});  // reading it would crash
  }
  EXPECT_NO_THROW((void)validated(*call));
  EXPECT_NO_THROW((void)validated(*call, Pointers::ignored));
}

TEST(ValidateCall, TheScaleOfTheCallReplacesTheProblems) {
  TestCall call(good_problem());
  call.raw.scale = std::nan("");  // not given, so not read
  EXPECT_DOUBLE_EQ(validated(call).call.scale, 0.125);
  call.raw.has_scale = 1;
  call.raw.scale = -3.0;
  EXPECT_EQ(validated(call).call.scale, -3.0);
}

TEST(ValidateCall, SaysWhetherTheScaleIsPositive) {
  batten_problem problem = good_problem();
  problem.has_scale = 1;
  for (const auto& [scale, positive] : {std::pair{1.0, true},
                                        {1e-30, true},
                                        {1e-300, false},
                                        {0.0, false},
                                        {-0.0, false},
                                        {-1.0, false}}) {
    problem.scale = scale;
    TestCall of_problem(problem);
    EXPECT_EQ(validated(of_problem).shape.scale_is_positive, positive) << scale;
    TestCall of_call(good_problem());
    of_call.raw.has_scale = 1;
    of_call.raw.scale = scale;
    EXPECT_EQ(validated(of_call).shape.scale_is_positive, positive) << scale;
  }
}

TEST(ValidateCall, TheStreamIsTheGpusAlone) {
  int stream = 0;
  TestCall on_gpu(good_problem(), Device::cuda(0));
  on_gpu.raw.stream = &stream;
  EXPECT_EQ(validated(on_gpu).call.stream, &stream);
  TestCall on_cpu(good_problem());
  on_cpu.raw.stream = &stream;
  EXPECT_EQ(validated(on_cpu).call.stream, nullptr);
}

TEST(ValidateCall, HandsTheCallersWorkspaceOn) {
  TestCall call(good_problem());
  call.raw.workspace = reinterpret_cast<void*>(std::uintptr_t{0x4000});
  call.raw.workspace_size = 777;
  EXPECT_EQ(validated(call).workspace, call.raw.workspace);
  EXPECT_EQ(validated(call).workspace_size, 777u);
}

TEST(ValidateCall, MaxQIsNoLargerThanTheBuffer) {
  const auto call = TestCall::packed(good_problem(), Device::cpu(), {0, 3, 8}, {1, 5, 11});
  call->raw.max_q = 1'000'000;
  call->raw.max_kv = 10;
  EXPECT_EQ(validated(*call).shape.max_q, 8);
  EXPECT_EQ(validated(*call).shape.max_kv, 10);
}

TEST(ValidateCall, ABoundAppliesToLengthsNotToTheirRows) {
  // Slots of a cache: many rows, few in use.
  const auto call = TestCall::packed(good_problem(), Device::cuda(0), {0, 1, 2}, {0, 100, 200});
  call->with_kv_lengths({3, 20});
  call->raw.max_kv = 20;
  EXPECT_EQ(validated(*call).shape.max_kv, 20);
  call->with_kv_lengths({3, 20}, /*on_device=*/true);
  EXPECT_EQ(validated(*call).shape.max_kv, 20);
}

// ---- legal, though unusual
// --------------------------------------------------------------------------

TEST(ValidateCall, EmptyCallsNeedNoMemory) {
  for (const TestCall::Size size : {TestCall::Size{0, 5, 7}, {2, 0, 7}, {2, 5, 0}, {2, 0, 0}}) {
    TestCall call(good_problem(), Device::cpu(), size);
    call.with_lse();
    if (size.batch * size.q == 0) call.q.data = call.out.data = call.lse.data = nullptr;
    if (size.batch * size.kv == 0) call.k.data = call.v.data = nullptr;
    EXPECT_NO_THROW((void)validated(call)) << size.batch << " " << size.q << " " << size.kv;
  }
  for (const bool no_samples : {true, false}) {
    const std::vector<std::int32_t> offsets =
        no_samples ? std::vector<std::int32_t>{0} : std::vector<std::int32_t>{0, 0, 0};
    const auto call = TestCall::packed(good_problem(), Device::cpu(), offsets, offsets);
    for (batten_tensor* t : {&call->q, &call->k, &call->v, &call->out}) t->data = nullptr;
    EXPECT_EQ(validated(*call).shape.batch, no_samples ? 0 : 2);
  }
}

TEST(ValidateCall, NoSamplesInAFullBufferIsLegal) {
  const auto call = TestCall::packed(good_problem(), Device::cpu(), {4}, {9});
  EXPECT_EQ(validated(*call).shape.batch, 0);
  EXPECT_EQ(validated(*call).shape.tokens_q, 4);
}

TEST(ValidateCall, EmptyLengthArraysMayBeNull) {
  TestCall call(good_problem(), Device::cpu(), {.batch = 0, .q = 5, .kv = 7});
  call.with_q_lengths({}).with_kv_lengths({});
  EXPECT_NO_THROW((void)validated(call));
}

TEST(ValidateCall, DeviceOffsetsOfEmptyBuffersNeedNoBound) {
  const auto call = TestCall::packed(good_problem(), Device::cuda(0), {0, 0}, {0, 0});
  call->offsets_on_device(0, 0);
  EXPECT_EQ(validated(*call).shape.max_q, 0);
}

TEST(ValidateCall, SharedKeysMayHaveStrideZero) {
  TestCall call(good_problem(), Device::cuda(0));
  call.k.strides[0] = call.v.strides[0] = 0;  // one set of keys for all samples
  call.k.strides[2] = call.v.strides[2] = 0;  // and for all heads
  EXPECT_EQ(validated(call).shape.k, (Layout{0, 128, 0}));
  EXPECT_EQ(validated(call).shape.v, (Layout{0, 128, 0}));
}

TEST(ValidateCall, TheCpuTakesNegativeStridesAndOddAddresses) {
  TestCall call(good_problem());
  call.q.strides[1] = -call.q.strides[1];
  call.k.strides[1] += 3;
  call.v.data = static_cast<char*>(call.v.data) + 2;
  EXPECT_EQ(validated(call).shape.q.row, -256);
  EXPECT_EQ(validated(call).shape.k.row, 131);
}

TEST(ValidateCall, TheGpuTakesStridesOfSixteenBytes) {
  TestCall half(good_problem(), Device::cuda(0));
  half.q.strides[2] = 64 + 8;
  half.q.strides[1] = 4 * 72 + 8;
  half.q.strides[0] = 5 * half.q.strides[1] + 8;
  EXPECT_EQ(validated(half).shape.q, (Layout{5 * 296 + 8, 296, 72}));
  TestCall single(good_problem(DType::f32), Device::cuda(0));
  single.k.strides[2] = 64 + 4;
  single.k.strides[1] = 2 * 68;
  EXPECT_EQ(validated(single).shape.k.head, 68);
}

TEST(ValidateCall, TheStrideOfASingleLengthMeansNothing) {
  TestCall call(good_problem(), Device::cpu(), {.batch = 1, .q = 5, .kv = 7});
  call.with_q_lengths({3}).with_kv_lengths({4});
  call.q_lengths.strides[0] = 7;
  call.kv_lengths.strides[0] = 0;
  EXPECT_NO_THROW((void)validated(call));
}

TEST(ValidateCall, TheGpuTakesAnyLseLayout) {
  TestCall call(good_problem(), Device::cuda(0));
  call.with_lse();
  call.lse.data = static_cast<char*>(call.lse.data) + 4;
  call.lse.strides[0] = 23;
  call.lse.strides[1] = 1;
  call.lse.strides[2] = 5;
  EXPECT_EQ(validated(call).shape.lse_layout, (Layout{23, 1, 5}));
}

TEST(ValidateCall, KeysAndValuesMayBeTheSameMemory) {
  TestCall call(good_problem());
  call.v.data = call.k.data = call.q.data;
  EXPECT_NO_THROW((void)validated(call));
}

TEST(ValidateCall, OutMayBeASliceOfTheFusedRow) {
  // [B, S, 4, H, D]: q, k, v and out side by side, also for a single row or sample.
  const batten_problem problem = good_problem(DType::bf16, 4, 4, 64);
  for (const TestCall::Size size : {TestCall::Size{2, 5, 5}, {2, 1, 1}, {1, 5, 5}}) {
    TestCall call(problem, Device::cuda(0), size);
    std::uintptr_t slice = reinterpret_cast<std::uintptr_t>(call.q.data);
    for (batten_tensor* t : {&call.q, &call.k, &call.v, &call.out}) {
      t->data = reinterpret_cast<void*>(slice);
      t->strides[1] = 4 * 256;
      t->strides[0] = size.q * 4 * 256;
      slice += 256 * 2;
    }
    EXPECT_NO_THROW((void)validated(call)) << size.batch << "x" << size.q;
  }
}

TEST(ValidateCall, TensorsBeyondTwoToThe31ElementsAreLegal) {
  const batten_problem problem = good_problem(DType::bf16, 40, 40, 128);
  TestCall call(problem, Device::cuda(0), {.batch = 1, .q = 1 << 20, .kv = 1 << 20});
  for (batten_tensor* t : {&call.k, &call.v, &call.out}) {
    t->data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(t->data) * 16);
  }
  EXPECT_EQ(validated(call).shape.q.batch, (std::int64_t{1} << 20) * 40 * 128);
}

// ---- prepare
// --------------------------------------------------------------------------------------

TEST(ValidateCall, PrepareAsksForNoTensor) {
  TestCall call(good_problem(), Device::cuda(0));
  call.with_lse().with_q_lengths({1, 2}, true);
  const Shape with_memory = validated(call).shape;
  for (batten_tensor* t : {&call.q, &call.k, &call.v, &call.out, &call.lse, &call.q_lengths}) {
    t->data = nullptr;
  }
  EXPECT_EQ(validated(call, Pointers::ignored).shape, with_memory);
}

TEST(ValidateCall, PrepareTakesPackedCallsWithoutOffsetsAtHand) {
  const auto call = TestCall::packed(good_problem(), Device::cuda(0), {0, 3, 8}, {1, 5, 11});
  call->offsets_q.data = call->offsets_kv.data = nullptr;
  call->raw.max_q = 5;
  call->raw.max_kv = 6;
  const Shape shape = validated(*call, Pointers::ignored).shape;
  EXPECT_TRUE(shape.packed);
  EXPECT_EQ(shape.max_q, 5);
  EXPECT_EQ(shape.batch, 2);
}

// ---- check_lengths on copies of device arrays (BATTEN_CHECK)
// ------------------------------------------

TEST(CheckLengths, AcceptsAndRefusesCopies) {
  const auto call = TestCall::packed(good_problem(), Device::cuda(0), {0, 3, 8}, {1, 5, 11});
  call->offsets_on_device(5, 6);
  const ValidatedCall v = validated(*call);
  Call copies = v.call;
  copies.offsets_q = call->offset_q_values.data();
  copies.offsets_kv = call->offset_kv_values.data();
  EXPECT_NO_THROW(check_lengths(v.shape, copies));
  call->offset_kv_values[2] = 12;
  EXPECT_THROW(check_lengths(v.shape, copies), Error);
  call->offset_kv_values = {0, 7, 7};
  copies.offsets_kv = call->offset_kv_values.data();
  EXPECT_THROW(check_lengths(v.shape, copies), Error) << "a sample longer than max_kv";
}

}  // namespace
}  // namespace batten::impl
