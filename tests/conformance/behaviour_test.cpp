// What §2 says of more than one call, and of calls that must not run: on the backends of the CPU.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance.hpp"

namespace batten::conformance {
namespace {

const std::vector<std::string> kBackends{"cpu", "reference"};

std::vector<float> random_values(std::uint64_t seed, std::size_t count) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = random.normal();
  return values;
}

std::size_t count_of(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
  return count;
}

DeviceTensor random_tensor(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed) {
  DeviceTensor tensor(Device::cpu(), dtype, contiguous_layout(shape));
  tensor.upload(random_values(seed, count_of(shape)), 0);
  return tensor;
}

// The tensors of a dense call.
struct Dense {
  DeviceTensor q, k, v, out, lse;

  Dense(DType dtype, std::int64_t batch, std::int64_t rows, std::int64_t keys, std::uint64_t seed,
        std::int64_t heads = 4, std::int64_t kv_heads = 2, std::int64_t dim = 64)
      : q(random_tensor(dtype, {batch, rows, heads, dim}, seed)),
        k(random_tensor(dtype, {batch, keys, kv_heads, dim}, seed + 1)),
        v(random_tensor(dtype, {batch, keys, kv_heads, dim}, seed + 2)),
        out(Device::cpu(), dtype, contiguous_layout({batch, rows, heads, dim})),
        lse(Device::cpu(), DType::f32, contiguous_layout({batch, rows, heads})) {}

  void forward(Attention& attention, CallOptions options = {}) {
    options.lse = lse.view();
    attention.forward(q.view(), k.view(), v.view(), out.view(), options);
  }
  std::vector<std::uint32_t> bits() const {
    std::vector<std::uint32_t> bits;
    for (const DeviceTensor* tensor : {&out, &lse})
      for (const float value : tensor->download())
        bits.push_back(std::bit_cast<std::uint32_t>(value));
    return bits;
  }
};

class Behaviour : public testing::TestWithParam<std::string> {
 protected:
  Attention attention(Problem problem) const {
    return Attention(problem, Device::cpu(), {.backend = GetParam()});
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Behaviour, testing::ValuesIn(kBackends),
                         [](const auto& backend) { return backend.param; });

// ---- many threads ------------------------------------------------------------

TEST_P(Behaviour, EightThreadsShareOneObject) {
  constexpr int kThreads = 8;
  constexpr int kTurns = 4;
  Attention shared = attention(
      {.dtype = bf16, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .mask = Mask::causal});
  // A shape for each thread, so that plans and scratch are made while others run.
  std::vector<Dense> calls;
  std::vector<std::vector<std::uint32_t>> expected;
  for (int i = 0; i < kThreads; ++i) {
    calls.emplace_back(bf16, 1 + i % 3, 20 + 13 * i, 40 + 9 * i, static_cast<std::uint64_t>(i));
    Attention own = attention(shared.problem());
    calls.back().forward(own);
    expected.push_back(calls.back().bits());
    calls.back().out.fill_bits(0);
  }
  std::latch start(kThreads);
  std::vector<std::string> failures(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, at = static_cast<std::size_t>(i)] {
      start.arrive_and_wait();
      try {
        for (int turn = 0; turn < kTurns; ++turn) {
          calls[at].forward(shared);
          if (calls[at].bits() != expected[at]) failures[at] = "other bits than alone";
        }
      } catch (const Error& error) {
        failures[at] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST_P(Behaviour, ThreadsShareOnlyTheInputs) {
  Attention shared = attention({.dtype = f16, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64});
  Dense call(f16, 2, 33, 70, 5);
  call.forward(shared);
  const std::vector<float> expected = call.out.download();
  std::vector<DeviceTensor> outs;
  for (int i = 0; i < 4; ++i) outs.emplace_back(Device::cpu(), f16, call.out.layout());
  std::vector<std::thread> threads;
  for (DeviceTensor& out : outs)
    threads.emplace_back(
        [&] { shared.forward(call.q.view(), call.k.view(), call.v.view(), out.view()); });
  for (std::thread& thread : threads) thread.join();
  for (const DeviceTensor& out : outs) EXPECT_EQ(out.download(), expected);
}

// ---- beyond 2^31 elements ----------------------------------------------------

// Address space of which only the touched pages exist.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes) : size_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMemory() {
    if (ok()) munmap(data_, size_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool ok() const noexcept { return data_ != MAP_FAILED; }
  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }

 private:
  std::size_t size_;
  void* data_;
};

// Runs [B, S, H, 64] = [2, 3, 2, 64] once contiguous, once with one stride so long that the
// tensors' last elements lie past 2^31 from the first.
void expect_far_equals_near(const std::string& backend, std::size_t far_axis) {
  constexpr std::int64_t kFar = std::int64_t{1} << 31;
  constexpr std::size_t kDim = 64;
  const std::vector<std::int64_t> shape{2, 3, 2, kDim};
  std::vector<std::int64_t> strides{6 * kDim, 2 * kDim, kDim, 1};
  strides[far_axis] = kFar / (shape[far_axis] - 1);
  const std::size_t bytes = static_cast<std::size_t>(kFar + 4096) * size_of(bf16);
  const SparseMemory memory(4 * bytes);
  if (!memory.ok()) GTEST_SKIP() << "no address space of " << 4 * bytes << " bytes";

  Attention attention({.dtype = bf16, .num_heads = 2, .head_dim = kDim, .mask = Mask::causal},
                      Device::cpu(), {.backend = backend});
  DeviceTensor near[3] = {random_tensor(bf16, shape, 1), random_tensor(bf16, shape, 2),
                          random_tensor(bf16, shape, 3)};
  DeviceTensor out(Device::cpu(), bf16, contiguous_layout(shape));
  attention.forward(near[0].view(), near[1].view(), near[2].view(), out.view());

  TensorView far[4];
  const TensorLayout layout = strided_layout(shape, strides, 0, 0);
  for (std::size_t i = 0; i < 4; ++i) {
    std::byte* base = memory.data() + i * bytes;
    far[i] = TensorView(base, bf16, shape, strides);
    if (i == 3) continue;
    std::size_t next = 0;
    const std::vector<float> values = near[i].download();
    for_each_element(layout, [&](std::int64_t at) {
      const std::uint16_t bits = to_bf16(values[next++]);
      std::memcpy(base + static_cast<std::size_t>(at) * 2, &bits, 2);
    });
  }
  attention.forward(far[0], far[1], far[2], far[3]);
  std::vector<float> got;
  for_each_element(layout, [&](std::int64_t at) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, memory.data() + 3 * bytes + static_cast<std::size_t>(at) * 2, 2);
    got.push_back(from_bf16(bits));
  });
  EXPECT_EQ(got, out.download());
}

TEST_P(Behaviour, SamplesPast2To31Elements) { expect_far_equals_near(GetParam(), 0); }
TEST_P(Behaviour, RowsPast2To31Elements) { expect_far_equals_near(GetParam(), 1); }
TEST_P(Behaviour, HeadsPast2To31Elements) { expect_far_equals_near(GetParam(), 2); }

// ---- unusual views -----------------------------------------------------------

TEST_P(Behaviour, NegativeStrideReversesTheRows) {
  Attention layer = attention({.dtype = f32, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64});
  Dense call(f32, 1, 9, 70, 7);
  call.forward(layer);
  // Reversed keys with reversed values are the same attention, in another order of summation.
  const auto reversed = [](const TensorView& view) {
    const std::int64_t shape[] = {1, view.shape(1), view.shape(2), view.shape(3)};
    const std::int64_t strides[] = {0, -view.stride(1), view.stride(2), 1};
    return TensorView(static_cast<const float*>(view.data()) + (view.shape(1) - 1) * view.stride(1),
                      f32, shape, strides);
  };
  DeviceTensor out(Device::cpu(), f32, call.out.layout());
  layer.forward(call.q.view(), reversed(call.k.view()), reversed(call.v.view()), out.view());
  const std::vector<float> expected = call.out.download();
  const std::vector<float> got = out.download();
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-6f) << i;
}

// ---- calls that must not run -------------------------------------------------

class Refusal : public Behaviour {
 protected:
  static constexpr std::uint32_t kPoison = 0x7fda;

  void SetUp() override {
    call_.out.fill_bits(kPoison);
    call_.lse.fill_bits(kPoison);
  }

  // The call fails as an invalid argument that says `word`, and nothing was written.
  template <class Run>
  void expect_refused(const char* word, Run&& run) {
    try {
      run();
      ADD_FAILURE() << "ran, but should say " << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
    for (const DeviceTensor* tensor : {&call_.out, &call_.lse})
      for (const std::uint32_t bits : tensor->image()) ASSERT_EQ(bits, kPoison);
  }

  Attention layer_ = attention({.dtype = bf16, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64});
  Dense call_{bf16, 2, 16, 32, 11};
};

INSTANTIATE_TEST_SUITE_P(Cpu, Refusal, testing::ValuesIn(kBackends),
                         [](const auto& backend) { return backend.param; });

TEST_P(Refusal, OutputOverInputs) {
  const TensorView q = call_.q.view(), k = call_.k.view(), v = call_.v.view();
  const std::vector<float> before = call_.q.download();
  expect_refused("overlap", [&] { layer_.forward(q, k, v, q); });
  EXPECT_EQ(call_.q.download(), before);
  // The last row of the output on the first of the keys.
  const std::int64_t shape[] = {2, 16, 4, 64};
  const auto* end = static_cast<const std::byte*>(k.data());
  const TensorView touching(end - (2 * 16 * 4 - 1) * 64 * 2, bf16, shape, {});
  expect_refused("overlap", [&] { layer_.forward(q, k, v, touching); });
}

TEST_P(Refusal, LseOverOutput) {
  const std::int64_t shape[] = {2, 16, 4};
  const TensorView lse(call_.out.view().data(), f32, shape, {});
  expect_refused("overlap", [&] {
    layer_.forward(call_.q.view(), call_.k.view(), call_.v.view(), call_.out.view(), {.lse = lse});
  });
}

TEST_P(Refusal, LengthsOutOfRange) {
  expect_refused("kv_lengths[1]", [&] {
    const std::vector<std::int32_t> lengths{5, 33};
    call_.forward(layer_, {.kv_lengths = lengths});
  });
  expect_refused("q_lengths[0]", [&] {
    const std::vector<std::int32_t> lengths{-1, 3};
    call_.forward(layer_, {.q_lengths = lengths});
  });
}

TEST_P(Refusal, OffsetsOutOfRange) {
  const auto packed = [](const DeviceTensor& tensor) {
    const TensorView view = tensor.view();
    const std::int64_t shape[] = {view.shape(0) * view.shape(1), view.shape(2), view.shape(3)};
    return TensorView(view.data(), view.dtype(), shape, {});
  };
  const std::vector<std::int32_t> good_q{0, 16, 32}, good_kv{0, 10, 64};
  const auto run = [&](const std::vector<std::int32_t>& q, const std::vector<std::int32_t>& kv,
                       std::int64_t max_q) {
    layer_.forward_packed(packed(call_.q), packed(call_.k), packed(call_.v), packed(call_.out),
                          {.offsets_q = q, .offsets_kv = kv, .max_q = max_q});
  };
  expect_refused("offsets_q", [&] { run({0, 20, 10}, good_kv, 0); });
  expect_refused("offsets_q", [&] { run({-1, 16, 32}, good_kv, 0); });
  expect_refused("offsets_kv", [&] { run(good_q, {0, 10, 65}, 0); });
  expect_refused("max_q", [&] { run(good_q, good_kv, 15); });
}

TEST_P(Refusal, ScaleThatIsNoNumber) {
  expect_refused("scale", [&] { call_.forward(layer_, {.scale = std::nan("")}); });
  expect_refused("scale", [&] { call_.forward(layer_, {.scale = INFINITY}); });
}

// ---- scratch -----------------------------------------------------------------

TEST_P(Behaviour, NoScratchIsOutOfMemoryAndNamesTheBytes) {
  Attention layer = attention({.dtype = bf16, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64});
  Dense call(bf16, 1, 70, 300, 17);
  const std::uint64_t bytes = layer.prepare(call.q.view(), call.k.view(), call.v.view(),
                                            call.out.view(), {.lse = call.lse.view()});
  if (bytes == 0) return;  // needs none, so that none can be missing
  trim();
  capi::check(batten_set_allocator(
      [](void*, batten_device, std::size_t, void*) -> void* { return nullptr; },
      [](void*, batten_device, void*, std::size_t, void*) {}, nullptr));
  try {
    call.forward(layer);
    ADD_FAILURE() << "ran without scratch";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OutOfMemory) << error.what();
    EXPECT_NE(std::string(error.what()).find("bytes"), std::string::npos) << error.what();
  }
  capi::check(batten_set_allocator(nullptr, nullptr, nullptr));
  call.forward(layer);  // and all is well again
}

// In a process of its own: the cap is read once.
TEST(ScratchDeathTest, MoreThanTheCapIsOutOfMemoryAndNamesBothNumbers) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto child = [] {
    ::setenv("BATTEN_WORKSPACE_MIB", "1", 1);
    Attention layer({.dtype = f32, .num_heads = 4, .head_dim = 256}, Device::cpu(),
                    {.backend = "cpu", .num_threads = 16});
    const TensorView tensor(nullptr, f32, {1, 4096, 4, 256});
    try {
      layer.prepare(tensor, tensor, tensor, tensor, {.scale = 1.0});
    } catch (const Error& error) {
      std::fprintf(stderr, "%s: %s", name_of(error.code()), error.what());
      std::exit(0);
    }
    std::exit(1);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "OutOfMemory: .*[0-9]+ bytes.* 1 MiB");
}

// ---- merge -------------------------------------------------------------------

TEST(Merge, RowsWithoutKeysContributeNothing) {
  const Device cpu = Device::cpu();
  DeviceTensor a(cpu, f32, contiguous_layout({1, 3, 1, 8}));
  DeviceTensor b(cpu, f32, contiguous_layout({1, 3, 1, 8}));
  DeviceTensor a_lse(cpu, f32, contiguous_layout({1, 3, 1}));
  DeviceTensor b_lse(cpu, f32, contiguous_layout({1, 3, 1}));
  a.upload(std::vector<float>(24, 1), 0);
  b.upload(std::vector<float>(24, 3), 0);
  const float none = -INFINITY;
  a_lse.upload(std::vector<float>{none, 2, none}, 0);
  b_lse.upload(std::vector<float>{5, none, none}, 0);
  merge(a.view(), a_lse.view(), b.view(), b_lse.view());
  EXPECT_EQ(a_lse.download(), (std::vector<float>{5, 2, none}));
  const std::vector<float> out = a.download();
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[8], 1);
  EXPECT_EQ(out[16], 0);  // never NaN
}

TEST(Merge, WeighsByLse) {
  for (const DType dtype : {f32, f16, bf16}) {
    const Device cpu = Device::cpu();
    DeviceTensor a(cpu, dtype, contiguous_layout({2, 1, 8}));
    DeviceTensor b(cpu, f32, contiguous_layout({2, 1, 8}));
    DeviceTensor a_lse(cpu, f32, contiguous_layout({2, 1}));
    DeviceTensor b_lse(cpu, f32, contiguous_layout({2, 1}));
    a.upload(std::vector<float>(16, 1), 0);
    b.upload(std::vector<float>(16, 2), 0);
    // 3 : 1, and logits that overflow unless the larger is taken out first.
    a_lse.upload(std::vector<float>{std::log(3.f), 1e4f}, 0);
    b_lse.upload(std::vector<float>{0, 1e4f}, 0);
    merge(a.view(), a_lse.view(), b.view(), b_lse.view());
    EXPECT_NEAR(a.download()[0], 1.25f, 1e-6f) << name_of(dtype);
    EXPECT_NEAR(a.download()[8], 1.5f, 1e-6f) << name_of(dtype);
    EXPECT_NEAR(a_lse.download()[0], std::log(4.f), 1e-6f);
    EXPECT_NEAR(a_lse.download()[1], 1e4f + std::log(2.f), 2e-3f);
  }
}

// ---- the suite's own conversions ---------------------------------------------

TEST(Half, EveryValueOfBothFormatsReturns) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    for (const DType dtype : {f16, bf16}) {
      const float value = decode(dtype, half);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(decode(dtype, encode(dtype, value))));
      } else {
        ASSERT_EQ(encode(dtype, value), half) << name_of(dtype);
      }
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(to_f16(1 + 0x1p-11f), 0x3c00);      // a tie goes to the even one below
  EXPECT_EQ(to_f16(1 + 3 * 0x1p-11f), 0x3c02);  // and above
  EXPECT_EQ(to_f16(1 + 0x1.002p-11f), 0x3c01);
  EXPECT_EQ(to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(to_f16(0x1p-25f), 0);  // half the smallest: a tie
  EXPECT_EQ(to_f16(0x1.002p-25f), 1);
  EXPECT_EQ(to_f16(-0x1p-24f), 0x8001);
  EXPECT_EQ(to_bf16(1 + 0x1p-8f), 0x3f80);
  EXPECT_EQ(to_bf16(1 + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(to_bf16(3.4e38f), 0x7f80);
}

// Scores that leave float's range where the logits, by a tiny scale, do not.
TEST(TinyScales, KeepHugeScoresFinite) {
  constexpr std::int64_t kDim = 8, kKeys = 2;
  std::vector<float> q(kDim, 1e20f), k(kKeys * kDim, 1e20f), v(kKeys * kDim);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i);
  std::fill_n(k.begin(), kDim, 0.99e20f);
  for (const double sign : {1.0, -1.0}) {
    for (const double magnitude : {1e-10, 1e-38, 1e-40, 1e-41, 1e-60, 1e-90, 1e-300}) {
      std::vector<std::vector<float>> outs;
      std::vector<float> lses;
      for (const std::string& backend : kBackends) {
        Attention attention({.dtype = f32, .num_heads = 1, .head_dim = kDim}, Device::cpu(),
                            {.backend = backend});
        std::vector<float> out(kDim), lse(1);
        attention.forward(
            TensorView(q.data(), f32, {1, 1, 1, kDim}),
            TensorView(k.data(), f32, {1, kKeys, 1, kDim}),
            TensorView(v.data(), f32, {1, kKeys, 1, kDim}),
            TensorView(out.data(), f32, {1, 1, 1, kDim}),
            {.lse = TensorView(lse.data(), f32, {1, 1, 1}), .scale = sign * magnitude});
        outs.push_back(out);
        lses.push_back(lse[0]);
      }
      for (std::size_t i = 0; i < kDim; ++i) {
        EXPECT_NEAR(outs[0][i], outs[1][i], 1e-3 * std::abs(outs[1][i]) + 1e-3) << magnitude;
      }
      EXPECT_NEAR(lses[0], lses[1], 1e-4 * std::abs(lses[1]) + 1e-4) << magnitude;
    }
  }
}

TEST(Outputs, MayNotLieOverTheLengths) {
  for (const std::string& backend : kBackends) {
    Attention attention({.dtype = f32, .num_heads = 1, .head_dim = 8}, Device::cpu(),
                        {.backend = backend});
    const std::vector<float> q(2 * 2 * 8), k(2 * 4 * 8);
    std::vector<float> out(2 * 2 * 8 + 8);
    auto* const inside = reinterpret_cast<std::int32_t*>(out.data() + 4);
    const std::span<const std::int32_t> lengths(inside, 2);
    const auto call = [&](const TensorView& o, const CallOptions& options) {
      attention.forward(TensorView(q.data(), f32, {2, 2, 1, 8}),
                        TensorView(k.data(), f32, {2, 4, 1, 8}),
                        TensorView(k.data(), f32, {2, 4, 1, 8}), o, options);
    };
    EXPECT_THROW(call(TensorView(out.data(), f32, {2, 2, 1, 8}), {.kv_lengths = lengths}), Error);
    EXPECT_THROW(call(TensorView(out.data(), f32, {2, 2, 1, 8}), {.q_lengths = lengths}), Error);
    std::vector<float> other(2 * 2 * 8);
    EXPECT_THROW(call(TensorView(other.data(), f32, {2, 2, 1, 8}),
                      {.lse = TensorView(out.data() + 3, f32, {2, 2, 1}), .kv_lengths = lengths}),
                 Error);
  }
}

TEST(Threads, OfAHugeMachineFitTheWorkspace) {
  for (const int dim : {8, 64, 128, 256}) {
    for (const int threads : {64, 384, 1024, 100000}) {
      Attention attention({.dtype = bf16, .num_heads = 1, .head_dim = dim}, Device::cpu(),
                          {.backend = "cpu", .num_threads = threads});
      EXPECT_LE(attention.prepare({.batch = 1, .q = 1, .kv = 1}), std::uint64_t{128} << 20) << dim;
    }
  }
}

TEST(Merge, OnADeviceThatIsNotThereIsUnavailable) {
  const Device nowhere = Device::cuda(-1);
  const auto data = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
  const auto more = reinterpret_cast<void*>(std::uintptr_t{1} << 24);
  try {
    merge(TensorView(data, f32, {1, 1, 8}, nowhere),
          TensorView(static_cast<char*>(data) + 4096, f32, {1, 1}, nowhere),
          TensorView(more, f32, {1, 1, 8}, nowhere),
          TensorView(static_cast<char*>(more) + 4096, f32, {1, 1}, nowhere));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unavailable) << error.what();
  }
}

}  // namespace
}  // namespace batten::conformance
