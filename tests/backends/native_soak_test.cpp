// Random small calls of the native backend against the float64 reference on the same GPU. A few
// hundred by default; BATTEN_SOAK=20000 for a soak, BATTEN_SOAK_SEED=n for one call again, both for
// that many calls from the nth on; BATTEN_SOAK_SECONDS ends it early.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <batten/batten.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "backends/native_family.hpp"
#include "conformance/bounds.hpp"
#include "conformance/cuda_support.hpp"
#include "conformance/device_memory.hpp"
#include "conformance/device_tensor.hpp"
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
  std::int64_t batch, q, kv;  // packed: tokens of the buffers
  double scale;
  bool lse;
  const char* backend = "native";
  bool on_device = false;  // lengths and offsets
  std::vector<std::int32_t> q_lengths, kv_lengths;
  std::vector<std::int32_t> offsets_q, offsets_kv;  // packed
  std::int64_t max_q = 0, max_kv = 0;               // likewise
  // Element offsets into the pool, and strides of rows, heads and samples.
  std::int64_t offset[3];
  std::vector<std::int64_t> strides[3];

  bool packed() const { return !offsets_q.empty(); }
  std::int64_t rows() const { return packed() ? q : batch * q; }

  // Whether a row of the output is a sample's to write.
  std::vector<bool> owned() const {
    std::vector<bool> rows_of_samples(static_cast<std::size_t>(rows()), !packed());
    for (std::size_t b = 0; packed() && b < static_cast<std::size_t>(batch); ++b) {
      const std::int32_t n = q_lengths.empty() ? offsets_q[b + 1] - offsets_q[b] : q_lengths[b];
      std::fill_n(rows_of_samples.begin() + offsets_q[b], n, true);
    }
    return rows_of_samples;
  }

  std::string str() const {
    const auto list = [](const char* name, const std::vector<std::int32_t>& numbers) {
      return numbers.empty() ? "" : fmt::format(" {} {}", name, fmt::join(numbers, ","));
    };
    return fmt::format("{} {} {} B{} {}x{} heads {}/{} d{} scale {}{}{}{}{}{}{}", backend,
                       name_of(problem.dtype), name_of(problem.mask), batch, q, kv,
                       problem.num_heads, problem.num_kv_heads, problem.head_dim, scale,
                       lse ? " lse" : "", on_device ? " on device" : "", list("q", q_lengths),
                       list("kv", kv_lengths), list("offsets q", offsets_q),
                       list("kv", offsets_kv));
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
    const std::int64_t edge = one_of(std::int64_t{0}, 64, 80, 128, 144, 160, 256, 288, 384, 512);
    return random.below(3) == 0 ? random.below(700)
                                : std::max<std::int64_t>(0, edge + random.below(7) - 3);
  };
  SoakCase c;
  c.problem.dtype = one_of(bf16, f16);
  c.problem.mask =
      one_of(Mask::none, Mask::none, Mask::causal, Mask::causal, Mask::causal_top_left);
  const auto& dims = native_head_dims();
  c.problem.head_dim =
      random.below(5) == 0 ? 128 : dims[static_cast<std::size_t>(random.below(std::ssize(dims)))];
  c.problem.num_kv_heads = one_of(1, 1, 2, 3);
  c.problem.num_heads = c.problem.num_kv_heads * one_of(1, 1, 2, 4);
  // Few samples, or more tiles than multiprocessors.
  c.batch = random.below(4) == 0 ? 20 + random.below(100) : 1 + random.below(4);
  c.q = length();
  c.kv = length();
  constexpr std::int64_t kGap = 8;
  constexpr std::int64_t kMostPadding = 24;
  while (c.batch * (c.kv + kGap) * c.problem.num_kv_heads * (c.problem.head_dim + kMostPadding) >
         kPool / 2)
    c.kv /= 2;
  while ((c.batch * (c.q + kGap) + kGap) * c.problem.num_heads * c.problem.head_dim > kMostOut)
    (c.q > 1 ? c.q : c.batch) /= 2;
  const double usual = 1 / std::sqrt(static_cast<double>(c.problem.head_dim));
  c.scale = one_of(usual, usual, usual, 6 * usual, 30 * usual, -usual, 0.0, 0.01);
  c.problem.scale = c.scale;
  c.lse = random.below(2) == 0;
  const auto lengths = [&](std::int64_t most) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(c.batch));
    for (std::int32_t& n : values) n = static_cast<std::int32_t>(random.below(most + 1));
    return values;
  };
  c.on_device = random.below(2) == 0;
  const std::int64_t samples = c.batch;  // of the strides
  if (random.below(3) == 0) {
    // Samples of any length one after another, tokens of nobody before, behind and between them.
    const bool gaps = random.below(2) == 0;
    const auto pack = [&](std::int64_t& rows, std::int64_t& most,
                          std::vector<std::int32_t>& offsets, std::vector<std::int32_t>& given) {
      const std::vector<std::int32_t> n = lengths(rows);
      offsets = {static_cast<std::int32_t>(random.below(kGap))};
      for (const std::int32_t count : n)
        offsets.push_back(offsets.back() + count +
                          static_cast<std::int32_t>(gaps ? random.below(kGap) : 0));
      if (gaps) given = n;
      most =
          std::max(1, *std::max_element(n.begin(), n.end())) + random.below(2) * random.below(200);
      rows = offsets.back() + random.below(2);
    };
    pack(c.q, c.max_q, c.offsets_q, c.q_lengths);
    pack(c.kv, c.max_kv, c.offsets_kv, c.kv_lengths);
  } else {
    if (random.below(3) == 0) c.q_lengths = lengths(c.q);
    if (random.below(3) == 0) c.kv_lengths = lengths(c.kv);
    const bool alike = c.q_lengths.empty() && c.kv_lengths.empty();
    if (alike && c.problem.mask == Mask::none) {
      c.backend = one_of("native", "native:whole", "native:divided", "native:joined");
    }
  }

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
    if (random.below(8) == 0 || c.packed()) sample = 0;
    if (random.below(8) == 0) head = 0;
    c.strides[i] = {sample, row, head, 1};
    if (c.packed()) c.strides[i].erase(c.strides[i].begin());
    const std::int64_t extent = samples * sample + rows * row + heads * head + dim;
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
    const std::int64_t rows = c.rows() * c.problem.num_heads;
    const std::int64_t dim = c.problem.head_dim;
    const std::vector<bool> owned = c.owned();
    const auto is_owned = [&](std::int64_t row) {
      return owned[static_cast<std::size_t>(row / c.problem.num_heads)];
    };
    Problem exact = c.problem;
    exact.out_dtype = f32;

    cuda_check(cudaMemset(out_.data(), kPoison, static_cast<std::size_t>(rows * dim * 2 + kGuard)),
               "cudaMemset");
    forward(c, c.problem, c.backend, pool.numbers, pool.numbers, out_, lse_);
    forward(c, exact, "reference", pool.numbers, pool.numbers, expected_, expected_lse_);
    forward(c, exact, "reference", pool.numbers, pool.magnitudes, bound_, expected_lse_);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

    const std::vector<std::byte> image = bytes_of(out_, rows * dim * 2 + kGuard);
    std::vector<float> out(static_cast<std::size_t>(rows * dim));
    decode(c.problem.dtype, image.data(), out);
    const std::vector<float> expected = download(expected_, rows * dim);
    const std::vector<float> bound = download(bound_, rows * dim);
    const double epsilon = 4 * epsilon_of(c.problem.dtype);
    for (std::int64_t row = 0; row < rows; ++row) {
      if (!is_owned(row)) {
        ASSERT_TRUE(untouched(image, row * dim * 2, dim * 2))
            << "seed " << seed << ", wrote nobody's row " << row << ": " << c.str();
        continue;
      }
      double error = 0, allowed = 0;
      for (std::int64_t i = row * dim; i < (row + 1) * dim; ++i) {
        const auto n = static_cast<std::size_t>(i);
        error += std::pow(double{out[n]} - expected[n], 2);
        allowed += std::pow(double{bound[n]}, 2);
      }
      ASSERT_LE(std::sqrt(error), epsilon * std::sqrt(allowed))
          << "seed " << seed << ", row " << row << ": " << c.str();
    }
    ASSERT_TRUE(untouched(image, rows * dim * 2, kGuard))
        << "seed " << seed << " wrote past the end: " << c.str();
    if (!c.lse) return;
    const std::vector<float> lse = download(lse_, rows);
    const std::vector<float> expected_lse = download(expected_lse_, rows);
    for (std::size_t i = 0; i < lse.size(); ++i) {
      if (!is_owned(static_cast<std::int64_t>(i))) continue;
      if (std::isinf(expected_lse[i])) {
        ASSERT_EQ(lse[i], expected_lse[i]) << "seed " << seed << ", row " << i << ": " << c.str();
      } else {
        ASSERT_NEAR(lse[i], expected_lse[i], 1e-5 * (10 + std::abs(expected_lse[i])))
            << "seed " << seed << ", row " << i << ": " << c.str();
      }
    }
  }

 private:
  static constexpr std::int64_t kGuard = 1024;
  static constexpr int kPoison = 0x7f;  // of bytes that must be overwritten, or must not

  static bool untouched(const std::vector<std::byte>& image, std::int64_t from,
                        std::int64_t count) {
    return std::all_of(image.begin() + from, image.begin() + from + count,
                       [](std::byte b) { return b == std::byte{kPoison}; });
  }

  static void forward(const SoakCase& c, const Problem& problem, const char* backend,
                      const DeviceMemory& pool, const DeviceMemory& values, DeviceMemory& out,
                      DeviceMemory& lse) {
    Attention attention(problem, kGpu, {.backend = backend});
    const auto shape_of = [&](std::int64_t rows, std::vector<std::int64_t> others) {
      others.insert(others.begin(), rows);
      if (!c.packed()) others.insert(others.begin(), c.batch);
      return others;
    };
    const auto input = [&](int i, const DeviceMemory& from, std::int64_t rows, int heads) {
      return TensorView(from.data() + 2 * c.offset[i], problem.dtype,
                        shape_of(rows, {heads, problem.head_dim}), c.strides[i], kGpu);
    };
    const TensorView q = input(0, pool, c.q, problem.num_heads);
    const TensorView k = input(1, pool, c.kv, problem.num_kv_heads);
    const TensorView v = input(2, values, c.kv, problem.num_kv_heads);
    const TensorView to(out.data(),
                        problem.out_dtype == DType::none ? problem.dtype : problem.out_dtype,
                        shape_of(c.q, {problem.num_heads, problem.head_dim}), {}, kGpu);

    std::vector<DeviceTensor> uploaded;
    const auto numbers = [&](const std::vector<std::int32_t>& values_of) {
      if (!c.on_device) return TensorView(values_of);
      DeviceTensor tensor(kGpu, DType::i32,
                          contiguous_layout({static_cast<std::int64_t>(values_of.size())}));
      tensor.upload(values_of);
      uploaded.push_back(std::move(tensor));
      return uploaded.back().view();
    };
    const auto common = [&](auto options) {
      if (c.lse)
        options.lse = TensorView(lse.data(), f32, shape_of(c.q, {problem.num_heads}), {}, kGpu);
      if (!c.q_lengths.empty()) options.q_lengths = numbers(c.q_lengths);
      if (!c.kv_lengths.empty()) options.kv_lengths = numbers(c.kv_lengths);
      return options;
    };
    if (c.packed()) {
      attention.forward_packed(q, k, v, to,
                               common(PackedOptions{.offsets_q = numbers(c.offsets_q),
                                                    .offsets_kv = numbers(c.offsets_kv),
                                                    .max_q = c.max_q,
                                                    .max_kv = c.max_kv}));
    } else {
      attention.forward(q, k, v, to, common(CallOptions{}));
    }
    // Memory of `uploaded` is freed after the work that reads it.
    if (!uploaded.empty()) synchronize(kGpu);
  }

  static std::vector<std::byte> bytes_of(const DeviceMemory& memory, std::int64_t count) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count));
    memory.download(bytes);
    return bytes;
  }

  static std::vector<float> download(const DeviceMemory& memory, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    decode(f32, bytes_of(memory, count * 4).data(), values);
    return values;
  }

  Pool bf16_{bf16}, f16_{f16};
  DeviceMemory out_{kGpu, static_cast<std::size_t>(kMostOut * 2 + kGuard)};
  DeviceMemory expected_{kGpu, static_cast<std::size_t>(kMostOut) * 4};
  DeviceMemory bound_{kGpu, static_cast<std::size_t>(kMostOut) * 4};
  DeviceMemory lse_{kGpu, static_cast<std::size_t>(kMostOut) / 16};
  DeviceMemory expected_lse_{kGpu, static_cast<std::size_t>(kMostOut) / 16};
};

TEST(NativeSoak, RandomCallsAgreeWithTheReference) {
  SKIP_UNLESS_AVAILABLE("native", kGpu);
  Soak soak;
  const std::int64_t first = variable("BATTEN_SOAK_SEED", 0);
  const std::int64_t count =
      variable("BATTEN_SOAK", std::getenv("BATTEN_SOAK_SEED") == nullptr ? 400 : 1);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(variable("BATTEN_SOAK_SECONDS", 3600));
  std::int64_t done = 0;
  for (; done < count && !HasFatalFailure() && std::chrono::steady_clock::now() < end; ++done)
    soak.run(static_cast<std::uint64_t>(first + done));
  std::cout << done << " calls from " << first << " on\n";
}

}  // namespace
}  // namespace batten::conformance
