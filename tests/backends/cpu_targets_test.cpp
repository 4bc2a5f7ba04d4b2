// The cpu backend, on every SIMD target that this machine can run, against plain double loops.
#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/cpu.hpp"
#include "backends/reference/element.hpp"

namespace batten::impl {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A tensor of any dtype whose elements the tests see as doubles.
struct Tensor {
  DType dtype = DType::f32;
  std::vector<std::uint16_t> halves;
  std::vector<float> floats;

  Tensor(DType type, std::int64_t count) : dtype(type) {
    if (type == DType::f32) {
      floats.resize(static_cast<std::size_t>(count));
    } else {
      halves.resize(static_cast<std::size_t>(count));
    }
  }
  std::int64_t size() const { return static_cast<std::int64_t>(floats.size() + halves.size()); }
  void* data() { return dtype == DType::f32 ? static_cast<void*>(floats.data()) : halves.data(); }
  double get(std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    if (dtype == DType::f32) return floats[at];
    return dtype == DType::f16 ? to_double(Half{halves[at]}) : to_double(Bfloat16{halves[at]});
  }
  void set(std::int64_t i, double x) {
    const auto at = static_cast<std::size_t>(i);
    if (dtype == DType::f32) {
      floats[at] = static_cast<float>(x);
    } else {
      halves[at] = dtype == DType::f16 ? round_to_16_bits<10>(x) : round_to_16_bits<7>(x);
    }
  }
  void fill_random(std::uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < size(); ++i) set(i, normal(generator));
  }
  void fill(double x) {
    for (std::int64_t i = 0; i < size(); ++i) set(i, x);
  }
  bool same_bits(const Tensor& other) const {
    return halves == other.halves && floats.size() == other.floats.size() &&
           (floats.empty() ||
            std::memcmp(floats.data(), other.floats.data(), floats.size() * sizeof(float)) == 0);
  }
};

// One call with its tensors, BSHD or packed, contiguous until a test changes the layouts.
struct Scene {
  Problem problem;
  Shape shape;
  double scale;
  std::vector<std::int32_t> q_lengths, kv_lengths, offsets_q, offsets_kv;
  Tensor q, k, v, out;
  std::vector<float> lse;

  Scene(DType dtype, int heads, int kv_heads, int dim, int dim_v, std::int64_t batch,
        std::int64_t sq, std::int64_t skv, Mask mask = Mask::none)
      : problem{.dtype = dtype,
                .out_dtype = dtype,
                .num_heads = heads,
                .num_kv_heads = kv_heads,
                .head_dim = dim,
                .head_dim_v = dim_v,
                .mask = mask,
                .batch_invariant = false},
        scale(1 / std::sqrt(dim)),
        q(dtype, batch * sq * heads * dim),
        k(dtype, batch * skv * kv_heads * dim),
        v(dtype, batch * skv * kv_heads * dim_v),
        out(dtype, batch * sq * heads * dim_v),
        lse(static_cast<std::size_t>(batch * sq * heads), kNan) {
    shape.batch = batch;
    shape.max_q = sq;
    shape.max_kv = skv;
    shape.tokens_q = batch * sq;
    shape.tokens_kv = batch * skv;
    shape.lse = true;
    const auto layout = [](std::int64_t rows, std::int64_t row_heads, std::int64_t d) {
      return Layout{.batch = rows * row_heads * d, .row = row_heads * d, .head = d};
    };
    shape.q = layout(sq, heads, dim);
    shape.k = layout(skv, kv_heads, dim);
    shape.v = layout(skv, kv_heads, dim_v);
    shape.out = layout(sq, heads, dim_v);
    shape.lse_layout = layout(sq, heads, 1);
    q.fill_random(1);
    k.fill_random(2);
    v.fill_random(3);
    out.fill(kNan);
  }

  void set_lengths(std::vector<std::int32_t> q_of, std::vector<std::int32_t> kv_of) {
    q_lengths = std::move(q_of);
    kv_lengths = std::move(kv_of);
    shape.q_lengths = q_lengths.empty() ? Source::none : Source::host;
    shape.kv_lengths = kv_lengths.empty() ? Source::none : Source::host;
  }
  // Makes the buffers of a scene with batch == 1 a packed batch.
  void set_packed(std::vector<std::int32_t> q_of, std::vector<std::int32_t> kv_of) {
    offsets_q = std::move(q_of);
    offsets_kv = std::move(kv_of);
    shape.packed = true;
    shape.batch = static_cast<std::int64_t>(offsets_q.size()) - 1;
    shape.offsets_q = shape.offsets_kv = Source::host;
  }

  Call call() {
    Call c;
    c.q = q.data();
    c.k = k.data();
    c.v = v.data();
    c.out = out.data();
    c.lse = shape.lse ? lse.data() : nullptr;
    if (!q_lengths.empty()) c.q_lengths = q_lengths.data();
    if (!kv_lengths.empty()) c.kv_lengths = kv_lengths.data();
    if (shape.packed) c.offsets_q = offsets_q.data();
    if (shape.packed) c.offsets_kv = offsets_kv.data();
    c.scale = scale;
    return c;
  }

  std::string run(int threads = 1, const char* form = "") {
    const auto backend = make_cpu();
    const BackendOptions options{.form = form, .num_threads = threads};
    EXPECT_EQ(backend->why_not(problem, Device::cpu()), std::nullopt);
    EXPECT_EQ(backend->why_not(problem, shape, Device::cpu(), options), std::nullopt);
    const Shape key = backend->plan_key(problem, shape, options);
    const auto plan = backend->plan(problem, key, Device::cpu(), options);
    std::vector<std::byte> memory(plan->info().workspace_size + 256);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    plan->run(shape, call(), memory.data() + (256 - address % 256) % 256);
    return plan->info().kernel;
  }

  // Both bounds of the design, and lse. `slack` multiplies them.
  void check(double slack = 1) {
    const double epsilon = slack * (problem.dtype == DType::f32   ? 2e-6
                                    : problem.dtype == DType::f16 ? 8e-4
                                                                  : 4e-3);
    const Call c = call();
    double error_squared = 0;
    double norm_squared = 0;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const Sample s = sample_of(shape, c, b);
      for (std::int64_t i = 0; i < s.q_rows; ++i) {
        for (std::int64_t h = 0; h < problem.num_heads; ++h) {
          check_row(s, i, h, epsilon, error_squared, norm_squared);
        }
      }
    }
    EXPECT_LE(std::sqrt(error_squared), epsilon * std::sqrt(norm_squared));
  }

  void check_row(const Sample& s, std::int64_t i, std::int64_t h, double epsilon,
                 double& error_squared, double& norm_squared) {
    const std::int64_t kv = h / (problem.num_heads / problem.num_kv_heads);
    std::vector<double> p;
    double maximum = -kInfinity;
    for (std::int64_t j = 0; i < s.q_length && j < s.kv_length; ++j) {
      if (problem.mask == Mask::causal && j > i + s.kv_length - s.q_length) break;
      if (problem.mask == Mask::causal_top_left && j > i) break;
      double dot = 0;
      for (std::int64_t d = 0; d < problem.head_dim; ++d) {
        dot += q.get(s.q_offset + i * shape.q.row + h * shape.q.head + d) *
               k.get(s.k_offset + j * shape.k.row + kv * shape.k.head + d);
      }
      p.push_back(scale * dot);
      maximum = std::max(maximum, p.back());
    }
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - maximum);

    double row_error = 0;
    double row_bound = 0;
    for (std::int64_t d = 0; d < problem.head_dim_v; ++d) {
      double expected = 0;
      double absolute = 0;
      for (std::size_t j = 0; j < p.size(); ++j) {
        const double value =
            v.get(s.v_offset + static_cast<std::int64_t>(j) * shape.v.row + kv * shape.v.head + d);
        expected += p[j] / sum * value;
        absolute += p[j] / sum * std::fabs(value);
      }
      const double got = out.get(s.out_offset + i * shape.out.row + h * shape.out.head + d);
      row_error += (got - expected) * (got - expected);
      row_bound += absolute * absolute;
      norm_squared += expected * expected;
    }
    error_squared += row_error;
    ASSERT_LE(std::sqrt(row_error), 4 * epsilon * std::sqrt(row_bound))
        << "row " << i << " head " << h;
    if (!shape.lse) return;
    const float got = lse[static_cast<std::size_t>(s.lse_offset + i * shape.lse_layout.row +
                                                   h * shape.lse_layout.head)];
    if (p.empty()) {
      ASSERT_EQ(got, -kInfinity) << "row " << i << " head " << h;
    } else {
      const double expected = maximum + std::log(sum);
      ASSERT_NEAR(got, expected, 4e-6 * std::max(1.0, std::fabs(expected))) << "row " << i;
    }
  }
};

std::vector<std::int64_t> runnable_targets() {
  std::vector<std::int64_t> targets;
  hwy::SetSupportedTargetsForTest(0);
  for (const std::int64_t target : {HWY_SSSE3, HWY_SSE4, HWY_AVX2, HWY_AVX3, HWY_NEON}) {
    if ((hwy::SupportedTargets() & target) != 0) targets.push_back(target);
  }
  return targets;
}

class CpuTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};
INSTANTIATE_TEST_SUITE_P(, CpuTarget, testing::ValuesIn(runnable_targets()),
                         [](const testing::TestParamInfo<std::int64_t>& target) {
                           return hwy::TargetName(target.param);
                         });

TEST_P(CpuTarget, RunsTheTargetAskedFor) {
  Scene scene(f32, 1, 1, 8, 8, 1, 1, 1);
  EXPECT_EQ(scene.run().rfind(hwy::TargetName(GetParam()), 0), 0u);
}

TEST_P(CpuTarget, HeadDimsLengthsAndTypes) {
  for (const DType dtype : {f32, f16, bf16}) {
    for (const auto& [dim, dim_v] : {std::pair{8, 8}, {24, 40}, {128, 128}, {256, 64}}) {
      for (const auto& [sq, skv] : {std::pair{1, 1}, {3, 129}, {50, 17}, {70, 300}, {200, 128}}) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << dim << " " << sq << " " << skv);
        Scene scene(dtype, 1, 1, dim, dim_v, 1, sq, skv);
        scene.run();
        scene.check();
      }
    }
  }
}

TEST_P(CpuTarget, MasksAndGroups) {
  for (const Mask mask : {Mask::causal, Mask::causal_top_left}) {
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {6, 2}, {5, 1}}) {
      for (const auto& [sq, skv] : {std::pair{1, 200}, {150, 150}, {90, 260}, {260, 90}, {7, 3}}) {
        SCOPED_TRACE(testing::Message()
                     << name_of(mask) << " " << heads << " " << sq << " " << skv);
        Scene scene(f32, heads, kv_heads, 16, 24, 2, sq, skv, mask);
        scene.run(2);
        scene.check();
      }
    }
  }
}

TEST_P(CpuTarget, LengthsAndPaddingThatIsGarbage) {
  for (const Mask mask : {Mask::none, Mask::causal}) {
    for (const DType dtype : {f32, f16, bf16}) {
      Scene scene(dtype, 4, 2, 32, 16, 5, 40, 150, mask);
      scene.set_lengths({40, 0, 7, 13, 40}, {150, 9, 0, 131, 1});
      const Call c = scene.call();
      for (std::int64_t b = 0; b < 5; ++b) {
        const Sample s = sample_of(scene.shape, c, b);
        const auto at = static_cast<std::size_t>(b);
        const auto spoil = [](Tensor& t, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) t.set(i, i % 3 == 0 ? kNan : kInfinity);
        };
        spoil(scene.q, s.q_offset + scene.q_lengths[at] * scene.shape.q.row,
              (b + 1) * scene.shape.q.batch);
        spoil(scene.k, s.k_offset + scene.kv_lengths[at] * scene.shape.k.row,
              (b + 1) * scene.shape.k.batch);
        spoil(scene.v, s.v_offset + scene.kv_lengths[at] * scene.shape.v.row,
              (b + 1) * scene.shape.v.batch);
      }
      scene.run(2);
      scene.check();
    }
  }
}

TEST_P(CpuTarget, PackedLeavesGapsAlone) {
  Scene scene(bf16, 4, 1, 64, 64, 1, 90, 200, Mask::causal);
  // Samples 0, 50..., with lengths that leave gaps behind each.
  scene.set_packed({0, 30, 30, 90}, {0, 140, 150, 200});
  scene.set_lengths({20, 0, 60}, {133, 10, 50});
  scene.out.fill(7);
  scene.run(2);
  scene.check();
  for (std::int64_t row = 20; row < 30; ++row) {
    for (std::int64_t i = 0; i < 4 * 64; ++i) ASSERT_EQ(scene.out.get(row * 4 * 64 + i), 7);
    for (std::size_t h = 0; h < 4; ++h) {
      ASSERT_TRUE(std::isnan(scene.lse[static_cast<std::size_t>(row) * 4 + h]));
    }
  }
}

TEST_P(CpuTarget, Scales) {
  for (const double scale : {0.0, -0.3, 1e-60, 1e-20, 3.0, 1e12, -1e300}) {
    SCOPED_TRACE(scale);
    Scene scene(f32, 2, 1, 16, 16, 1, 20, 140, Mask::causal);
    scene.scale = scale;
    scene.run();
    // At huge scales softmax is a maximum, and lse is as good as the product it comes from.
    if (std::fabs(scale) > 10) scene.shape.lse = false;
    scene.check();
  }
}

TEST_P(CpuTarget, LargeLogitsStayFinite) {
  for (const bool rising : {false, true}) {
    Scene scene(f32, 1, 1, 8, 8, 1, 5, 400);
    scene.scale = 1;
    scene.q.fill(0);
    scene.k.fill(0);
    for (std::int64_t i = 0; i < 5; ++i) scene.q.set(i * 8, i % 2 == 0 ? 1 : -1);
    for (std::int64_t j = 0; j < 400; ++j) {
      scene.k.set(j * 8, 1e5 * std::sin(static_cast<double>(rising ? j : 400 - j)));
    }
    scene.run();
    scene.check(1e5 * 6e-8 / 2e-6);  // half an ulp of the largest logit
  }
}

TEST_P(CpuTarget, VisibleNanReachesTheRowsThatSeeIt) {
  for (const bool in_values : {false, true}) {
    Scene scene(f32, 1, 1, 16, 16, 1, 300, 300, Mask::causal);
    (in_values ? scene.v : scene.k).set(250 * 16 + 3, kNan);
    scene.run();
    for (std::int64_t i = 250; i < 300; ++i) ASSERT_TRUE(std::isnan(scene.out.get(i * 16 + 3)));
    for (std::int64_t i = 0; i < 100; ++i) ASSERT_FALSE(std::isnan(scene.out.get(i * 16 + 3)));
  }
}

TEST_P(CpuTarget, HalfInfinitiesSubnormalsAndRounding) {
  // One key: the output is the value, whatever it is.
  Scene scene(f16, 1, 1, 8, 8, 1, 1, 1);
  const std::vector<std::uint16_t> special = {0x7c00, 0xfc00, 0x7e00, 0x0001,
                                              0x83ff, 0x7bff, 0x8000, 0x0400};
  scene.v.halves = special;
  scene.run();
  EXPECT_EQ(scene.out.halves[0], 0x7c00);
  EXPECT_EQ(scene.out.halves[1], 0xfc00);
  EXPECT_EQ(scene.out.halves[2] & 0x7e00, 0x7e00);
  for (const std::size_t i : {3u, 4u, 5u, 7u}) EXPECT_EQ(scene.out.halves[i], special[i]);

  // The mean of two neighbours is a tie, which goes to the even one.
  for (const DType dtype : {f16, bf16}) {
    Scene tie(dtype, 1, 1, 8, 8, 1, 1, 2);
    tie.q.fill(0);
    for (std::uint16_t i = 0; i < 8; ++i) {
      const auto low = static_cast<std::uint16_t>(0x3c00 + i);
      tie.v.halves[i] = low;
      tie.v.halves[8u + i] = static_cast<std::uint16_t>(low + 1);
    }
    tie.run();
    for (std::uint16_t i = 0; i < 8; ++i) EXPECT_EQ(tie.out.halves[i], 0x3c00 + (i + 1) / 2 * 2);
  }
}

TEST_P(CpuTarget, Bf16InfinitiesSubnormalsAndNans) {
  Scene scene(bf16, 1, 1, 8, 8, 1, 1, 1);
  const std::vector<std::uint16_t> special = {0x7f80, 0xff80, 0x7f81, 0x0001,
                                              0x807f, 0x7f7f, 0x8000, 0x0080};
  scene.v.halves = special;
  scene.run();
  EXPECT_EQ(scene.out.halves[2] & 0x7fc0, 0x7fc0);
  for (const std::size_t i : {0u, 1u, 3u, 4u, 5u, 7u}) EXPECT_EQ(scene.out.halves[i], special[i]);
}

TEST_P(CpuTarget, SharedKeysOddStridesAndFloatOutput) {
  Scene scene(bf16, 4, 2, 16, 8, 3, 33, 140);
  scene.shape.k.batch = scene.shape.v.batch = 0;  // one sample's keys for all
  scene.shape.k.head = 0;                         // and one head's
  scene.shape.q = {.batch = 16, .row = 4 * 3 * 16, .head = 3 * 16};
  scene.problem.out_dtype = f32;
  scene.out = Tensor(f32, scene.out.size());
  scene.out.fill(kNan);
  scene.shape.out = {.batch = 8, .row = 4 * 3 * 8, .head = 3 * 8};
  scene.shape.lse_layout = {.batch = 4 * 33, .row = 1, .head = 33};
  scene.run(2);
  scene.check(1e-3);
}

TEST_P(CpuTarget, NothingBehindTheLastTokenIsRead) {
  for (const DType dtype : {f32, f16, bf16}) {
    Scene scene(dtype, 2, 1, 24, 8, 1, 37, 133);
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    constexpr std::size_t kPages = 16;
    std::vector<void*> maps;
    // Copies a tensor so that it ends where readable memory does.
    const auto at_the_edge = [&](Tensor& tensor) {
      void* map = mmap(nullptr, (kPages + 1) * page, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      EXPECT_NE(map, MAP_FAILED);
      maps.push_back(map);
      auto* end = static_cast<std::byte*>(map) + kPages * page;
      EXPECT_EQ(mprotect(end, page, PROT_NONE), 0);
      const std::size_t bytes = static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype);
      std::memcpy(end - bytes, tensor.data(), bytes);
      return end - bytes;
    };
    Call call = scene.call();
    call.q = at_the_edge(scene.q);
    call.k = at_the_edge(scene.k);
    call.v = at_the_edge(scene.v);
    call.out = at_the_edge(scene.out);
    const auto backend = make_cpu();
    const BackendOptions options{.form = {}, .num_threads = 1};
    const auto plan = backend->plan(scene.problem, scene.shape, Device::cpu(), options);
    std::vector<std::byte> memory(plan->info().workspace_size + 256);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    plan->run(scene.shape, call, memory.data() + (256 - address % 256) % 256);
    std::memcpy(scene.out.data(), call.out,
                static_cast<std::size_t>(scene.out.size()) * size_of(dtype));
    scene.check();
    for (void* map : maps) munmap(map, (kPages + 1) * page);
  }
}

TEST_P(CpuTarget, BitsDependOnNeitherThreadsNorBatchNorRun) {
  Scene whole(f32, 6, 2, 40, 40, 3, 170, 290, Mask::causal);
  whole.set_lengths({170, 61, 100}, {290, 190, 77});
  whole.run(1);
  const Tensor expected = whole.out;
  for (const int threads : {1, 2, 3, 7}) {
    whole.out.fill(kNan);
    whole.run(threads);
    EXPECT_TRUE(whole.out.same_bits(expected)) << threads << " threads";
  }
  // Sample 1 alone.
  Scene alone(f32, 6, 2, 40, 40, 1, 170, 290, Mask::causal);
  alone.set_lengths({61}, {190});
  for (std::int64_t i = 0; i < alone.q.size(); ++i) alone.q.set(i, whole.q.get(alone.q.size() + i));
  for (std::int64_t i = 0; i < alone.k.size(); ++i) alone.k.set(i, whole.k.get(alone.k.size() + i));
  for (std::int64_t i = 0; i < alone.v.size(); ++i) alone.v.set(i, whole.v.get(alone.v.size() + i));
  alone.run(2);
  for (std::int64_t i = 0; i < alone.out.size(); ++i) {
    ASSERT_EQ(alone.out.get(i), expected.get(alone.out.size() + i));
  }
}

// "cpu:bf16dot", where the CPU has that instruction.
class CpuBf16Dot : public testing::Test {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(0);
    const Scene scene(bf16, 1, 1, 8, 8, 1, 1, 1);
    const auto reason = make_cpu()->why_not(scene.problem, scene.shape, Device::cpu(),
                                            {.form = "bf16dot", .num_threads = 1});
    if (reason) GTEST_SKIP() << *reason;
  }
};

TEST_F(CpuBf16Dot, HeadDimsAndLengths) {
  for (const auto& [dim, dim_v] : {std::pair{8, 8}, {24, 40}, {128, 128}, {256, 64}}) {
    for (const auto& [sq, skv] : {std::pair{1, 1}, {3, 129}, {50, 17}, {70, 300}, {200, 128}}) {
      SCOPED_TRACE(testing::Message() << dim << " " << sq << " " << skv);
      Scene scene(bf16, 6, 2, dim, dim_v, 1, sq, skv, Mask::causal);
      EXPECT_NE(scene.run(2, "bf16dot").find("bf16dot"), std::string::npos);
      scene.check();
    }
  }
}

TEST_F(CpuBf16Dot, ScalesAndOddStrides) {
  for (const double scale : {0.0, -0.3, 0.2}) {
    for (const int odd : {0, 1}) {
      Scene scene(bf16, 1, 1, 16, 16, 2, 5, 40);
      scene.scale = scale;
      scene.q = Tensor(bf16, 400);
      scene.q.fill_random(4);
      scene.shape.q.row += odd;
      scene.run(1, "bf16dot");
      scene.check();
    }
  }
}

TEST_F(CpuBf16Dot, GarbagePaddingAndVisibleNan) {
  Scene scene(bf16, 1, 1, 16, 16, 1, 20, 150);
  scene.set_lengths({}, {131});
  for (std::int64_t i = 131 * 16; i < 150 * 16; ++i) {
    scene.k.set(i, kNan);
    scene.v.set(i, kInfinity);
  }
  scene.run(1, "bf16dot");
  scene.check();
  scene.k.set(40, kNan);
  scene.run(1, "bf16dot");
  for (std::int64_t i = 0; i < scene.out.size(); ++i) ASSERT_TRUE(std::isnan(scene.out.get(i)));
}

TEST(Cpu, SaysWhichInstructionsItLacks) {
  hwy::SetSupportedTargetsForTest(HWY_SCALAR);
  const Availability availability = make_cpu()->availability(Device::cpu());
  hwy::SetSupportedTargetsForTest(0);
  EXPECT_FALSE(availability.available);
  EXPECT_EQ(availability.reason,
            HWY_ARCH_X86 ? "this CPU lacks SSSE3" : "this CPU lacks NEON with AES");
  EXPECT_NE(availability.remedy.find("reference"), std::string::npos);
}

TEST(Cpu, SaysWhichHeadDimItRefuses) {
  const auto backend = make_cpu();
  for (const int dim : {4, 100, 264}) {
    const Problem problem{.dtype = f32,
                          .out_dtype = f32,
                          .num_heads = 1,
                          .num_kv_heads = 1,
                          .head_dim = dim,
                          .head_dim_v = 64,
                          .mask = Mask::none,
                          .batch_invariant = false};
    const auto reason = backend->why_not(problem, Device::cpu());
    ASSERT_TRUE(reason.has_value());
    EXPECT_NE(reason->find(std::to_string(dim)), std::string::npos);
    EXPECT_NE(reason->find("reference"), std::string::npos);
  }
}

}  // namespace
}  // namespace batten::impl
