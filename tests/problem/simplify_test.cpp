// Validation rewrites calls into simpler ones; no row may move by it.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "fakes/test_call.hpp"
#include "problem/problem_test.hpp"
#include "problem/validate.hpp"

namespace batten::impl {
namespace {

using testing::good_problem;
using testing::TestCall;

std::uintptr_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

// ---- full lengths
// -----------------------------------------------------------------------------------

TEST(FullLengths, OnTheHostAreDropped) {
  TestCall call(good_problem());
  call.with_q_lengths({5, 5}).with_kv_lengths({7, 7});
  const auto v = validated(call);
  EXPECT_EQ(v.shape.q_lengths, Source::none);
  EXPECT_EQ(v.shape.kv_lengths, Source::none);
  EXPECT_EQ(v.call.q_lengths, nullptr);
  EXPECT_EQ(v.call.kv_lengths, nullptr);
  TestCall plain(good_problem());
  EXPECT_EQ(v.shape, validated(plain).shape) << "so that both calls share one plan";
}

TEST(FullLengths, AreJudgedEachForItself) {
  TestCall call(good_problem());
  call.with_q_lengths({5, 5}).with_kv_lengths({7, 6});
  auto v = validated(call);
  EXPECT_EQ(v.shape.q_lengths, Source::none);
  EXPECT_EQ(v.shape.kv_lengths, Source::host);
  EXPECT_EQ(v.call.kv_lengths, call.kv_length_values.data());
  call.with_q_lengths({4, 5}).with_kv_lengths({7, 7});
  v = validated(call);
  EXPECT_EQ(v.shape.q_lengths, Source::host);
  EXPECT_EQ(v.shape.kv_lengths, Source::none);
  call.with_q_lengths({4, 4});
  EXPECT_EQ(validated(call).shape.q_lengths, Source::host) << "equal, but not full";
}

TEST(FullLengths, OnTheDeviceAreUnknownAndStay) {
  TestCall call(good_problem(), Device::cuda(0));
  call.with_q_lengths({5, 5}, true).with_kv_lengths({7, 7}, true);
  const auto v = validated(call);
  EXPECT_EQ(v.shape.q_lengths, Source::device);
  EXPECT_EQ(v.shape.kv_lengths, Source::device);
  EXPECT_EQ(v.call.q_lengths, call.q_length_values.data());
}

// ---- uniform packed calls
// ---------------------------------------------------------------------------

TEST(UniformPacked, BecomesTheDenseCallOfTheSameMemory) {
  const auto packed = TestCall::packed(good_problem(), Device::cuda(0), {0, 5, 10}, {0, 7, 14});
  packed->with_lse();
  const auto v = validated(*packed);
  TestCall dense(good_problem(), Device::cuda(0));
  dense.with_lse();
  const auto expected = validated(dense);
  EXPECT_EQ(v.shape, expected.shape) << "so that both forms share one plan";
  EXPECT_EQ(v.call.q, packed->q.data);
  EXPECT_EQ(v.call.offsets_q, nullptr);
  EXPECT_EQ(v.call.offsets_kv, nullptr);
}

TEST(UniformPacked, MayBeginBehindTheFirstToken) {
  const auto call = TestCall::packed(good_problem(), Device::cpu(), {2, 5, 8}, {3, 7, 11});
  call->with_lse();
  const auto v = validated(*call);
  EXPECT_FALSE(v.shape.packed);
  EXPECT_EQ(v.shape.max_q, 3);
  EXPECT_EQ(v.shape.max_kv, 4);
  EXPECT_EQ(v.shape.tokens_q, 6);
  EXPECT_EQ(v.shape.tokens_kv, 8);
  EXPECT_EQ(v.shape.offsets_q, Source::none);
  EXPECT_EQ(v.shape.offsets_kv, Source::none);
  EXPECT_EQ(address(v.call.q), address(call->q.data) + 2 * 256 * 2);
  EXPECT_EQ(address(v.call.k), address(call->k.data) + 3 * 128 * 2);
  EXPECT_EQ(address(v.call.v), address(call->v.data) + 3 * 128 * 2);
  EXPECT_EQ(address(v.call.out), address(call->out.data) + 2 * 256 * 2);
  EXPECT_EQ(address(v.call.lse), address(call->lse.data) + 2 * 4 * 4);
  EXPECT_EQ(v.shape.q.batch, 3 * 256);
  EXPECT_EQ(v.shape.k.batch, 4 * 128);
  EXPECT_EQ(v.shape.v.batch, 4 * 128);
  EXPECT_EQ(v.shape.out.batch, 3 * 256);
  EXPECT_EQ(v.shape.lse_layout.batch, 3 * 4);
}

TEST(UniformPacked, PartialOutputsInFloatMoveByTheirOwnSize) {
  batten_problem problem = good_problem();
  problem.out_dtype = BATTEN_F32;
  problem.head_dim_v = 32;
  const auto call = TestCall::packed(problem, Device::cpu(), {2, 5}, {3, 7});
  const auto v = validated(*call);
  EXPECT_EQ(address(v.call.out), address(call->out.data) + 2 * 4 * 32 * 4);
  EXPECT_EQ(address(v.call.v), address(call->v.data) + 3 * 2 * 32 * 2);
  EXPECT_EQ(v.call.lse, nullptr);
}

TEST(UniformPacked, StaysPackedWhereAnythingIsRagged) {
  const auto stays = [](std::vector<std::int32_t> q, std::vector<std::int32_t> kv) {
    const auto call = TestCall::packed(good_problem(), Device::cpu(), std::move(q), std::move(kv));
    const auto v = validated(*call);
    return v.shape.packed && v.call.offsets_q == call->offset_q_values.data() &&
           v.call.q == call->q.data;
  };
  EXPECT_TRUE(stays({0, 5, 9}, {0, 7, 14}));
  EXPECT_TRUE(stays({0, 5, 10}, {0, 7, 15}));
  EXPECT_TRUE(stays({0, 5, 10, 14}, {0, 7, 14, 21}));
  EXPECT_TRUE(stays({0, 0, 5}, {0, 7, 14}));
  EXPECT_FALSE(stays({0, 0, 0}, {0, 7, 14})) << "all empty is uniform too";
  EXPECT_FALSE(stays({0, 5}, {0, 9})) << "one sample always is";
}

TEST(UniformPacked, StaysPackedWithLengthsOrDeviceOffsets) {
  auto call = TestCall::packed(good_problem(), Device::cuda(0), {0, 5, 10}, {0, 7, 14});
  call->with_q_lengths({5, 5});
  EXPECT_TRUE(validated(*call).shape.packed);
  EXPECT_EQ(validated(*call).shape.q_lengths, Source::host) << "full, but rows are not lengths";
  call = TestCall::packed(good_problem(), Device::cuda(0), {0, 5, 10}, {0, 7, 14});
  call->with_kv_lengths({7, 7}, true);
  EXPECT_TRUE(validated(*call).shape.packed);
  call = TestCall::packed(good_problem(), Device::cuda(0), {0, 5, 10}, {0, 7, 14});
  call->offsets_on_device(5, 7);
  EXPECT_TRUE(validated(*call).shape.packed);
  call->offsets_q.device = {};  // one of the two
  EXPECT_TRUE(validated(*call).shape.packed);
}

TEST(UniformPacked, MayLeaveTheEndOfItsBufferUnused) {
  const auto call = TestCall::packed(good_problem(), Device::cpu(), {0, 3, 6, 9}, {0, 7, 14, 21});
  call->offsets_q.shape[0] = call->offsets_kv.shape[0] = 3;
  const auto v = validated(*call);
  EXPECT_FALSE(v.shape.packed);
  EXPECT_EQ(v.shape.batch, 2);
  EXPECT_EQ(v.shape.tokens_q, 6);
}

// ---- strides that nobody steps along
// ----------------------------------------------------------------

TEST(UnusedStrides, DoNotTellTwoCallsApart) {
  const batten_problem problem = good_problem(DType::bf16, 1, 1, 64);
  TestCall plain(problem, Device::cuda(0), {.batch = 1, .q = 1, .kv = 7});
  TestCall strange(problem, Device::cuda(0), {.batch = 1, .q = 1, .kv = 7});
  plain.with_lse();
  strange.with_lse();
  strange.q.strides[0] = 12345;
  strange.q.strides[1] = -3;
  strange.q.strides[2] = 0;
  strange.k.strides[0] = 1;
  strange.out.strides[0] = strange.out.strides[1] = strange.out.strides[2] = 0;
  strange.lse.strides[0] = strange.lse.strides[1] = strange.lse.strides[2] = 99;
  EXPECT_EQ(validated(strange).shape, validated(plain).shape);
}

TEST(UnusedStrides, OfWildSizeAreHarmless) {
  const batten_problem problem = good_problem(DType::bf16, 1, 1, 64);
  TestCall call(problem, Device::cpu(), {.batch = 1, .q = 1, .kv = 1});
  for (batten_tensor* t : {&call.q, &call.k, &call.v, &call.out}) {
    t->strides[0] = INT64_MAX;
    t->strides[1] = INT64_MIN;
    t->strides[2] = INT64_MAX / 2;
  }
  EXPECT_EQ(validated(call).shape.q, (Layout{64, 64, 64}));
}

TEST(UnusedStrides, OfTheLastDimensionMeanNothingForOneElement) {
  TestCall call(good_problem(DType::f32, 4, 2, 1));
  call.q.strides[3] = 17;
  EXPECT_NO_THROW((void)validated(call));
}

// ---- the property
// -------------------------------------------------------------------------------------

// Strides of the dimensions in any nesting, with gaps between.
void shuffle_strides(batten_tensor& t, int dims) {
  std::vector<int> order(static_cast<std::size_t>(dims));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[static_cast<std::size_t>(any_of(0, static_cast<int>(i)))]);
  }
  std::int64_t stride = t.ndim > dims ? t.shape[dims] : 1;
  for (const int dim : order) {
    stride += any_of(0, 3);
    t.strides[dim] = stride;
    stride *= std::max<std::int64_t>(t.shape[dim], 1);
  }
}

std::vector<std::int32_t> any_offsets(std::int64_t batch, bool uniform) {
  std::vector<std::int32_t> offsets{static_cast<std::int32_t>(any_of(0, 3))};
  const auto step = any_of(0, 4);
  for (std::int64_t b = 0; b < batch; ++b) {
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(uniform ? step : any_of(0, 4)));
  }
  return offsets;
}

// Where the caller's structs say that a row and head of a sample lie.
std::uintptr_t raw_address(const batten_tensor& t, bool packed, const std::int32_t* offsets,
                           std::int64_t b, std::int64_t row, std::int64_t head) {
  const auto size = static_cast<std::int64_t>(size_of(static_cast<DType>(t.dtype)));
  const std::int64_t element = packed ? (offsets[b] + row) * t.strides[0] + head * t.strides[1]
                                      : b * t.strides[0] + row * t.strides[1] + head * t.strides[2];
  return address(t.data) + static_cast<std::uintptr_t>(element * size);
}

RC_GTEST_PROP(ValidatedCall, EveryRowOfEverySampleIsWhereTheCallerSaid, ()) {
  batten_problem problem = good_problem(DType::bf16, 4, 2, 8);
  problem.head_dim_v = static_cast<int>(any_of(0, 1)) * 16;
  problem.out_dtype = any_bool() ? BATTEN_DTYPE_NONE : BATTEN_F32;
  const bool packed = any_bool();
  const std::int64_t batch = any_of(1, 3);
  std::unique_ptr<TestCall> call;
  if (packed) {
    const bool uniform = any_bool();
    call = TestCall::packed(problem, Device::cpu(), any_offsets(batch, uniform),
                            any_offsets(batch, uniform));
  } else {
    call = std::make_unique<TestCall>(
        problem, Device::cpu(),
        TestCall::Size{.batch = batch, .q = any_of(0, 4), .kv = any_of(0, 4)});
  }
  call->with_lse();
  const int dims = packed ? 2 : 3;
  for (batten_tensor* t : {&call->q, &call->k, &call->v, &call->out, &call->lse}) {
    shuffle_strides(*t, dims);
  }
  std::vector<std::int64_t> rows_q, rows_kv, lengths_q, lengths_kv;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto i = static_cast<std::size_t>(b);
    rows_q.push_back(packed ? call->offset_q_values[i + 1] - call->offset_q_values[i]
                            : call->q.shape[1]);
    rows_kv.push_back(packed ? call->offset_kv_values[i + 1] - call->offset_kv_values[i]
                             : call->k.shape[1]);
  }
  lengths_q = rows_q;
  lengths_kv = rows_kv;
  if (any_of(0, 2) == 0) {
    for (auto& length : lengths_q) length = any_of(0, length);
    call->with_q_lengths({lengths_q.begin(), lengths_q.end()});
  }
  if (any_of(0, 2) == 0) {
    for (auto& length : lengths_kv) length = any_of(0, length);
    call->with_kv_lengths({lengths_kv.begin(), lengths_kv.end()});
  }

  const auto [shape, c, workspace, workspace_size] = validated(*call);
  RC_TAG(packed ? (shape.packed ? "packed" : "packed to dense") : "dense");
  for (std::int64_t b = 0; b < batch; ++b) {
    const Sample s = sample_of(shape, c, b);
    const auto i = static_cast<std::size_t>(b);
    RC_ASSERT(s.q_length == lengths_q[i] && s.kv_length == lengths_kv[i]);
    RC_ASSERT(s.q_rows == (packed ? lengths_q[i] : rows_q[i]));
    RC_ASSERT(s.q_length <= shape.max_q && s.kv_length <= shape.max_kv);
    const auto check = [&](const batten_tensor& t, const std::vector<std::int32_t>& offsets,
                           const void* base, std::int64_t offset, const Layout& layout,
                           std::int64_t rows, std::int64_t heads) {
      const auto size = static_cast<std::int64_t>(size_of(static_cast<DType>(t.dtype)));
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t head = 0; head < heads; ++head) {
          const std::int64_t element = offset + row * layout.row + head * layout.head;
          RC_ASSERT(address(base) + static_cast<std::uintptr_t>(element * size) ==
                    raw_address(t, packed, offsets.data(), b, row, head));
        }
      }
    };
    check(call->q, call->offset_q_values, c.q, s.q_offset, shape.q, s.q_length, 4);
    check(call->out, call->offset_q_values, c.out, s.out_offset, shape.out, s.q_rows, 4);
    check(call->lse, call->offset_q_values, c.lse, s.lse_offset, shape.lse_layout, s.q_rows, 4);
    check(call->k, call->offset_kv_values, c.k, s.k_offset, shape.k, s.kv_length, 2);
    check(call->v, call->offset_kv_values, c.v, s.v_offset, shape.v, s.kv_length, 2);
  }
}

}  // namespace
}  // namespace batten::impl
