// The transformer's operations and the golden models on a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/half.hpp"
#include "device_memory.hpp"
#include "fakes/expect_error.hpp"
#include "wan/denoise.hpp"
#include "wan/golden.hpp"

namespace batten::wan {
namespace {

std::unique_ptr<Ops> gpu() { return make_cuda_ops(0, false); }

bool no_gpu() { return conformance::cuda_device_count() == 0; }

#define SKIP_WITHOUT_GPU() \
  if (no_gpu()) GTEST_SKIP() << "no GPU"

class GoldenOnGpu : public ::testing::TestWithParam<std::string> {};

// Only the reference serves float32 on a GPU, and small head dims.
TEST_P(GoldenOnGpu, Float32) {
  SKIP_WITHOUT_GPU();
  expect_golden(*gpu(), GetParam(), DType::f32, "reference", 2e-5);
}

// diffusers itself in bfloat16 is 1e-2 to 2e-2 away from what it makes in float32.
TEST_P(GoldenOnGpu, Bfloat16) {
  SKIP_WITHOUT_GPU();
  expect_golden(*gpu(), GetParam(), DType::bf16, "reference", 4e-2);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenOnGpu, ::testing::ValuesIn(golden_models()),
                         [](const auto& info) { return info.param; });

TEST(GoldenNative, HeadDim128) {
  SKIP_WITHOUT_GPU();
  expect_golden(*gpu(), "t2v_head128", DType::bf16, "auto", 4e-2);
}

// One operation on the GPU in its dtype, and on the CPU in float32 on the same rounded values.
class Pair {
 public:
  explicit Pair(DType dtype) : dtype_(dtype) {}

  struct Tensor {
    std::vector<float> values;
    Memory gpu, cpu;
    DType dtype;
  };

  Tensor random(std::size_t count, std::uint64_t seed) {
    return tensor(noise(count, seed), dtype_);
  }
  Tensor random_float(std::size_t count, std::uint64_t seed, float mean = 0) {
    std::vector<float> values = noise(count, seed);
    for (float& v : values) v = mean + 0.5F * v;
    return tensor(std::move(values), DType::f32);
  }
  Tensor tensor(std::vector<float> values, DType dtype) {
    if (dtype == DType::bf16)
      for (float& v : values) v = impl::bfloat16_to_float(impl::float_to_bfloat16(v));
    Tensor t{values, gpu_->allocate(values.size() * size_of(dtype)),
             cpu_->allocate(values.size() * sizeof(float)), dtype};
    cpu_->copy_in(t.cpu.data, values.data(), values.size() * sizeof(float));
    gpu_->upload(t.gpu.data, t.gpu.bytes, [&](std::span<std::byte> piece, std::size_t offset) {
      for (std::size_t i = 0; i < piece.size() / size_of(dtype); ++i) {
        const float v = values[offset / size_of(dtype) + i];
        const std::uint16_t bits = impl::float_to_bfloat16(v);
        std::memcpy(piece.data() + i * size_of(dtype),
                    dtype == DType::bf16 ? static_cast<const void*>(&bits) : &v, size_of(dtype));
      }
    });
    return t;
  }
  std::vector<float> from_gpu(const Tensor& t) {
    std::vector<std::byte> bytes(t.gpu.bytes);
    gpu_->copy_out(bytes.data(), t.gpu.data, bytes.size());
    gpu_->synchronize();
    std::vector<float> values(bytes.size() / size_of(t.dtype));
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint16_t bits = 0;
      if (t.dtype == DType::bf16) std::memcpy(&bits, bytes.data() + i * 2, 2);
      if (t.dtype == DType::f32) std::memcpy(&values[i], bytes.data() + i * 4, 4);
      if (t.dtype == DType::bf16) values[i] = impl::bfloat16_to_float(bits);
    }
    return values;
  }
  // Within one rounding of the dtype, of the value and of what it is a sum of.
  void expect_equal(const Tensor& t, const char* what, double scale = 1) {
    const std::vector<float> got = from_gpu(t);
    const auto* const expected = reinterpret_cast<const float*>(t.cpu.data);
    const double epsilon = dtype_ == DType::bf16 ? 0x1p-7 : 2e-5;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], epsilon * (std::abs(expected[i]) + scale))
          << what << " at " << i;
    }
  }

  Ops& gpu_ops() { return *gpu_; }
  Ops& cpu_ops() { return *cpu_; }

 private:
  DType dtype_;
  std::unique_ptr<Ops> gpu_ = gpu();
  std::unique_ptr<Ops> cpu_ = make_cpu_ops(0);
};

struct Width {
  std::int64_t d;
  DType dtype;
};
class Operations : public ::testing::TestWithParam<Width> {};

TEST_P(Operations, NormWithResidualAndModulation) {
  SKIP_WITHOUT_GPU();
  const auto [d, dtype] = GetParam();
  Pair pair(dtype);
  const std::int64_t rows = 613;  // no multiple of anything
  const auto n = static_cast<std::size_t>(rows * d);
  auto x = pair.random(n, 1);
  auto y = pair.random(n, 2);
  auto out = pair.random(n, 3);
  auto table = pair.random_float(static_cast<std::size_t>(3 * d), 4);
  auto rows_of = pair.random(static_cast<std::size_t>(2 * 3 * d), 5);
  std::vector<std::int32_t> index(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = i % 7 == 0 || i > 400;
  const Memory gpu_index = pair.gpu_ops().allocate(index.size() * 4);
  pair.gpu_ops().copy_in(gpu_index.data, index.data(), index.size() * 4);
  for (const bool residual : {true, false}) {
    const auto call = [&](bool on_gpu) {
      const auto at = [&](const Pair::Tensor& t) { return on_gpu ? t.gpu.data : t.cpu.data; };
      const auto element = on_gpu ? size_of(dtype) : sizeof(float);
      const auto modulation = [&](std::int64_t row) {
        return Modulation{reinterpret_cast<const float*>(at(table)) + row * d,
                          at(rows_of) + static_cast<std::size_t>(row * d) * element, 3 * d};
      };
      return NormCall{
          .x = at(x),
          .y = residual ? at(y) : nullptr,
          .out = at(out),
          .rows = rows,
          .d = d,
          .dtype = on_gpu ? dtype : DType::f32,
          .eps = 1e-6,
          .gate = residual ? modulation(2) : Modulation{},
          .scale = modulation(1),
          .shift = modulation(0),
          .unit = 1,
          .index = on_gpu ? reinterpret_cast<const std::int32_t*>(gpu_index.data) : index.data()};
    };
    pair.gpu_ops().norm(call(true));
    pair.cpu_ops().norm(call(false));
    pair.expect_equal(x, "the residual");
    // The CPU's residual is not rounded: the norm may differ by what that makes.
    pair.expect_equal(out, "the norm", 2);
  }
}

TEST_P(Operations, RmsWithRotation) {
  SKIP_WITHOUT_GPU();
  const auto [d, dtype] = GetParam();
  Pair pair(dtype);
  const std::int64_t rows = 514;
  const std::int64_t tokens = 257;
  auto qkv = pair.random(static_cast<std::size_t>(rows * 3 * d), 1);
  auto weight_q = pair.random_float(static_cast<std::size_t>(d), 2, 1);
  auto weight_k = pair.random_float(static_cast<std::size_t>(d), 3, 1);
  auto rope = pair.random_float(static_cast<std::size_t>(tokens * 128), 4);
  for (const bool both : {true, false}) {
    const auto call = [&](bool on_gpu) {
      const auto at = [&](const Pair::Tensor& t) { return on_gpu ? t.gpu.data : t.cpu.data; };
      const auto element = on_gpu ? size_of(dtype) : sizeof(float);
      return RmsCall{.q = at(qkv),
                     .k = both ? at(qkv) + static_cast<std::size_t>(d) * element : nullptr,
                     .weight_q = reinterpret_cast<const float*>(at(weight_q)),
                     .weight_k = reinterpret_cast<const float*>(at(weight_k)),
                     .rows = rows,
                     .d = d,
                     .stride = 3 * d,
                     .head_dim = 128,
                     .dtype = on_gpu ? dtype : DType::f32,
                     .eps = 1e-6,
                     .rope = both ? reinterpret_cast<const float*>(at(rope)) : nullptr,
                     .tokens = tokens};
    };
    pair.gpu_ops().rms(call(true));
    pair.cpu_ops().rms(call(false));
    pair.expect_equal(qkv, both ? "q and k" : "q alone", 2);
  }
}

TEST_P(Operations, LinearWithEveryActivation) {
  SKIP_WITHOUT_GPU();
  const auto [d, dtype] = GetParam();
  Pair pair(dtype);
  const std::int64_t rows = 300;
  const std::int64_t n_out = 512;
  auto x = pair.random(static_cast<std::size_t>(rows * d), 1);
  std::vector<float> weights = noise(static_cast<std::size_t>(n_out * d), 2);
  for (float& w : weights) w /= std::sqrt(static_cast<float>(d));
  auto weight = pair.tensor(std::move(weights), dtype);
  auto bias = pair.random(static_cast<std::size_t>(n_out), 3);
  auto out = pair.random(static_cast<std::size_t>(rows * n_out), 4);
  for (const Activation activation :
       {Activation::none, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu}) {
    const auto call = [&](bool on_gpu) {
      const auto at = [&](const Pair::Tensor& t) { return on_gpu ? t.gpu.data : t.cpu.data; };
      return LinearCall{.x = at(x),
                        .weight = at(weight),
                        .bias = at(bias),
                        .out = at(out),
                        .rows = rows,
                        .n_in = d,
                        .n_out = n_out,
                        .dtype = on_gpu ? dtype : DType::f32,
                        .activation = activation};
    };
    pair.gpu_ops().linear(call(true));
    pair.cpu_ops().linear(call(false));
    pair.expect_equal(out, "the linear");
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, Operations,
                         ::testing::Values(Width{1536, DType::bf16}, Width{1536, DType::f32},
                                           Width{3072, DType::bf16}, Width{5120, DType::bf16},
                                           Width{5120, DType::f32}),
                         [](const auto& info) {
                           return std::to_string(info.param.d) + name_of(info.param.dtype);
                         });

TEST(Patches, GoInAndOut) {
  SKIP_WITHOUT_GPU();
  Pair pair(DType::f32);
  const std::size_t count = 2 * 5 * 4 * 6 * 8;
  auto latents = pair.random(count, 1);
  auto rows = pair.random(count, 2);
  const auto call = [&](bool on_gpu) {
    const auto at = [&](const Pair::Tensor& t) { return on_gpu ? t.gpu.data : t.cpu.data; };
    return PatchCall{.latents = reinterpret_cast<float*>(at(latents)),
                     .rows = at(rows),
                     .dtype = DType::f32,
                     .batch = 2,
                     .channels = 5,
                     .frames = 4,
                     .height = 6,
                     .width = 8,
                     .pt = 2,
                     .ph = 3,
                     .pw = 2};
  };
  pair.gpu_ops().patchify(call(true));
  pair.cpu_ops().patchify(call(false));
  pair.expect_equal(rows, "patches");
  pair.gpu_ops().unpatchify(call(true));
  pair.cpu_ops().unpatchify(call(false));
  pair.expect_equal(latents, "latents");
}

TEST(Elements, AreAddedAndConverted) {
  SKIP_WITHOUT_GPU();
  Pair pair(DType::bf16);
  auto a = pair.random(8 * 1001, 1);
  auto b = pair.random(8 * 1001, 2);
  pair.gpu_ops().add(a.gpu.data, b.gpu.data, 8 * 1001, DType::bf16);
  pair.cpu_ops().add(a.cpu.data, b.cpu.data, 8 * 1001, DType::f32);
  pair.expect_equal(a, "the sum");
  auto x = pair.random_float(1001, 3);
  auto y = pair.random(1001, 4);
  pair.gpu_ops().activate(x.gpu.data, DType::f32, y.gpu.data, DType::bf16, 1001, Activation::silu);
  pair.cpu_ops().activate(x.cpu.data, DType::f32, y.cpu.data, DType::f32, 1001, Activation::silu);
  pair.expect_equal(y, "the activation");
}

TEST(Memory, SaysHowMuchIsFree) {
  SKIP_WITHOUT_GPU();
  const auto ops = gpu();
  batten::testing::expect_error(ErrorCode::OutOfMemory, {"GiB are free"},
                                [&] { ops->allocate(std::size_t{1} << 50); });
}

// By recorded steps, in which small differences grow from step to step.
TEST(DenoiseOnGpu, LikeDiffusersPipelines) {
  SKIP_WITHOUT_GPU();
  const auto ops = gpu();
  for (const char* model : {"t2v", "i2v", "ti2v"})
    for (const char* scheduler : {"unipc", "euler"})
      for (const bool cfg_batch : {false, true})
        expect_denoised(*ops, model, scheduler, "reference", cfg_batch, 1e-3);
}

}  // namespace
}  // namespace batten::wan
