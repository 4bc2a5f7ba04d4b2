// Random small calls of the native backend against the float64 reference on the same GPU. A few
// hundred by default; BATTEN_SOAK=20000 for a soak, BATTEN_SOAK_SEED=n for one call again.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <batten/batten.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "conformance/bounds.hpp"
#include "conformance/cuda_support.hpp"
#include "conformance/device_memory.hpp"
#include "conformance/gpu_test.hpp"
#include "conformance/half.hpp"
#include "conformance/random.hpp"

namespace batten::conformance {
namespace {

const Device kGpu = Device::cuda(0);
constexpr std::int64_t kPool = std::int64_t{1} << 23;  // elements that inputs are taken from
constexpr std::int64_t kMostOut = std::int64_t{1} << 21;

std::int64_t variable(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

// Random numbers in a 16-bit format, and their magnitudes.
struct Pool {
  DeviceMemory numbers, magnitudes;

  explicit Pool(DType dtype) {
    std::vector<float> values(kPool);
    Random random(seed_of(name_of(dtype)));
    for (float& x : values) x = random.normal();
    numbers = upload(dtype, values);
    for (float& x : values) x = std::abs(x);
    magnitudes = upload(dtype, values);
  }

 private:
  static DeviceMemory upload(DType dtype, const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * 2);
    encode(dtype, values, bytes.data());
    DeviceMemory memory(kGpu, bytes.size());
    memory.upload(bytes);
    return memory;
  }
};

struct SoakCase {
  Problem problem;
  std::int64_t batch, q, kv;
  double scale;
  bool lse;
  std::vector<std::int32_t> q_lengths, kv_lengths;
  // Element offsets into the pool, and strides of rows, heads and samples.
  std::int64_t offset[3];
  std::vector<std::int64_t> strides[3];

  std::string str() const {
    return fmt::format("{} {} B{} {}x{} heads {}/{} d{} scale {}{}{}{}", name_of(problem.dtype),
                       name_of(problem.mask), batch, q, kv, problem.num_heads, problem.num_kv_heads,
                       problem.head_dim, scale, lse ? " lse" : "",
                       q_lengths.empty() ? "" : fmt::format(" q {}", fmt::join(q_lengths, ",")),
                       kv_lengths.empty() ? "" : fmt::format(" kv {}", fmt::join(kv_lengths, ",")));
  }
};

SoakCase random_case(std::uint64_t seed) {
  Random random(seed_of(fmt::format("soak/{}", seed)));
  const auto one_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[static_cast<std::size_t>(random.below(sizeof...(values)))];
  };
  const auto length = [&] {
    // Often next to a tile's edge.
    const std::int64_t edge = one_of(std::int64_t{0}, 64, 128, 144, 256, 288, 384, 512);
    return random.below(3) == 0 ? random.below(700)
                                : std::max<std::int64_t>(0, edge + random.below(7) - 3);
  };
  SoakCase c;
  c.problem.dtype = one_of(bf16, f16);
  c.problem.mask = one_of(Mask::none, Mask::none, Mask::causal, Mask::causal, Mask::causal_top_left);
  c.problem.head_dim = one_of(64, 128, 128);
  c.problem.num_kv_heads = one_of(1, 1, 2, 3);
  c.problem.num_heads = c.problem.num_kv_heads * one_of(1, 1, 2, 4);
  c.batch = 1 + random.below(4);
  c.q = length();
  c.kv = length();
  while (c.batch * c.q * c.problem.num_heads * c.problem.head_dim > kMostOut) c.q /= 2;
  const double usual = 1 / std::sqrt(static_cast<double>(c.problem.head_dim));
  c.scale = one_of(usual, usual, usual, 6 * usual, 30 * usual, -usual, 0.0, 0.01);
  c.problem.scale = c.scale;
  c.lse = random.below(2) == 0;
  const auto lengths = [&](std::int64_t most) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(c.batch));
    for (std::int32_t& n : values) n = static_cast<std::int32_t>(random.below(most + 1));
    return values;
  };
  if (random.below(3) == 0) c.q_lengths = lengths(c.q);
  if (random.below(3) == 0) c.kv_lengths = lengths(c.kv);

  for (int i = 0; i < 3; ++i) {
    const std::int64_t rows = i == 0 ? c.q : c.kv;
    const std::int64_t heads = i == 0 ? c.problem.num_heads : c.problem.num_kv_heads;
    const std::int64_t dim = c.problem.head_dim;
    const std::int64_t pad = 8 * random.below(4);
    std::int64_t head = dim + pad, row = heads * head + 8 * random.below(3), sample = rows * row;
    if (random.below(3) == 0) {  // heads before rows
      row = dim + pad;
      head = rows * row + 8 * random.below(3);
      sample = heads * head;
    }
    if (random.below(8) == 0) sample = 0;
    if (random.below(8) == 0) head = 0;
    c.strides[i] = {sample, row, head, 1};
    const std::int64_t extent = c.batch * sample + rows * row + heads * head + dim;
    c.offset[i] = 8 * random.below((kPool - extent) / 8);
  }
  return c;
}

// ‖a - b‖ and more are taken over rows; both fp32.
class Soak {
 public:
  void run(std::uint64_t seed) {
    const SoakCase c = random_case(seed);
    const Pool& pool = c.problem.dtype == bf16 ? bf16_ : f16_;
    const std::int64_t rows = c.batch * c.q * c.problem.num_heads;
    const std::int64_t dim = c.problem.head_dim;
    Problem exact = c.problem;
    exact.out_dtype = f32;

    poison_.poison(out_, static_cast<std::size_t>(rows * dim) * 2 + kGuard);
    forward(c, c.problem, "native", pool.numbers, pool.numbers, out_, lse_);
    forward(c, exact, "reference", pool.numbers, pool.numbers, expected_, expected_lse_);
    forward(c, exact, "reference", pool.numbers, pool.magnitudes, bound_, expected_lse_);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

    const std::vector<float> out = download(c.problem.dtype, out_, rows * dim);
    const std::vector<float> expected = download(f32, expected_, rows * dim);
    const std::vector<float> bound = download(f32, bound_, rows * dim);
    const double epsilon = 4 * epsilon_of(c.problem.dtype);
    for (std::int64_t row = 0; row < rows; ++row) {
      double error = 0, allowed = 0;
      for (std::int64_t i = row * dim; i < (row + 1) * dim; ++i) {
        const auto n = static_cast<std::size_t>(i);
        error += std::pow(double{out[n]} - expected[n], 2);
        allowed += std::pow(double{bound[n]}, 2);
      }
      ASSERT_LE(std::sqrt(error), epsilon * std::sqrt(allowed))
          << "seed " << seed << ", row " << row << ": " << c.str();
    }
    ASSERT_TRUE(poison_.untouched(out_, static_cast<std::size_t>(rows * dim) * 2, kGuard))
        << "seed " << seed << " wrote past the end: " << c.str();
    if (!c.lse) return;
    const std::vector<float> lse = download(f32, lse_, rows);
    const std::vector<float> expected_lse = download(f32, expected_lse_, rows);
    for (std::size_t i = 0; i < lse.size(); ++i) {
      if (std::isinf(expected_lse[i])) {
        ASSERT_EQ(lse[i], expected_lse[i]) << "seed " << seed << ", row " << i << ": " << c.str();
      } else {
        ASSERT_NEAR(lse[i], expected_lse[i], 1e-5 * (10 + std::abs(expected_lse[i])))
            << "seed " << seed << ", row " << i << ": " << c.str();
      }
    }
  }

 private:
  static constexpr std::size_t kGuard = 1024;

  // Bytes that must be overwritten, and others that must not.
  struct Poison {
    static constexpr int kByte = 0x7f;
    void poison(DeviceMemory& memory, std::size_t bytes) const {
      cuda_check(cudaMemset(memory.data(), kByte, bytes), "cudaMemset");
    }
    bool untouched(const DeviceMemory& memory, std::size_t from, std::size_t bytes) const {
      std::vector<std::byte> guard(bytes);
      memory.download(guard, from);
      for (const std::byte b : guard)
        if (b != std::byte{kByte}) return false;
      return true;
    }
  };

  static void forward(const SoakCase& c, const Problem& problem, const char* backend,
                      const DeviceMemory& pool, const DeviceMemory& values, DeviceMemory& out,
                      DeviceMemory& lse) {
    Attention attention(problem, kGpu, {.backend = backend});
    const auto input = [&](int i, const DeviceMemory& from, std::int64_t rows, int heads) {
      const std::vector<std::int64_t> shape{c.batch, rows, heads, problem.head_dim};
      return TensorView(from.data() + 2 * c.offset[i], problem.dtype, shape, c.strides[i], kGpu);
    };
    const std::vector<std::int64_t> shape{c.batch, c.q, problem.num_heads, problem.head_dim};
    const std::vector<std::int64_t> lse_shape{c.batch, c.q, problem.num_heads};
    const DType out_dtype = problem.out_dtype == DType::none ? problem.dtype : problem.out_dtype;
    CallOptions options;
    if (c.lse) options.lse = TensorView(lse.data(), f32, lse_shape, {}, kGpu);
    if (!c.q_lengths.empty()) options.q_lengths = TensorView(c.q_lengths);
    if (!c.kv_lengths.empty()) options.kv_lengths = TensorView(c.kv_lengths);
    attention.forward(input(0, pool, c.q, problem.num_heads),
                      input(1, pool, c.kv, problem.num_kv_heads),
                      input(2, values, c.kv, problem.num_kv_heads),
                      TensorView(out.data(), out_dtype, shape, {}, kGpu), options);
  }

  static std::vector<float> download(DType dtype, const DeviceMemory& memory, std::int64_t count) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count) * (dtype == f32 ? 4 : 2));
    memory.download(bytes, 0);
    std::vector<float> values(static_cast<std::size_t>(count));
    decode(dtype, bytes.data(), values);
    return values;
  }

  Pool bf16_{bf16}, f16_{f16};
  Poison poison_;
  DeviceMemory out_{kGpu, static_cast<std::size_t>(kMostOut) * 2 + kGuard};
  DeviceMemory expected_{kGpu, static_cast<std::size_t>(kMostOut) * 4};
  DeviceMemory bound_{kGpu, static_cast<std::size_t>(kMostOut) * 4};
  DeviceMemory lse_{kGpu, static_cast<std::size_t>(kMostOut) / 16};
  DeviceMemory expected_lse_{kGpu, static_cast<std::size_t>(kMostOut) / 16};
};

TEST(NativeSoak, RandomCallsAgreeWithTheReference) {
  SKIP_UNLESS_AVAILABLE("native", kGpu);
  Soak soak;
  const std::int64_t first = variable("BATTEN_SOAK_SEED", 0);
  const std::int64_t count = std::getenv("BATTEN_SOAK_SEED") ? 1 : variable("BATTEN_SOAK", 400);
  for (std::int64_t i = 0; i < count && !HasFatalFailure(); ++i)
    soak.run(static_cast<std::uint64_t>(first + i));
}

}  // namespace
}  // namespace batten::conformance
