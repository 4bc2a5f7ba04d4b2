// Tensors of more than 2^31 elements on the GPU: the last sample's rows must be right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance.hpp"
#include "cuda_support.hpp"
#include "gpu_test.hpp"

namespace batten::conformance {
namespace {

constexpr std::int64_t kHeads = 32, kDim = 128;
constexpr std::int64_t kRow = kHeads * kDim;
// 129 samples of 4097 rows: 2^31 elements end inside the last but one.
constexpr std::int64_t kBatch = 129, kRows = 4097;
constexpr std::int64_t kTokens = kBatch * kRows;
static_assert(kTokens * kRow > (std::int64_t{1} << 31) + kRows * kRow);

// [kTokens, kHeads, kDim] in bf16, all of it random: a block of numbers, doubled until it is full.
DeviceMemory large_tensor(Device device, std::uint64_t seed) {
  const std::size_t bytes = static_cast<std::size_t>(kTokens * kRow) * 2;
  DeviceMemory memory(device, bytes);
  std::vector<float> values(std::size_t{1} << 22);
  Random random(seed);
  for (float& value : values) value = random.normal();
  std::vector<std::byte> block(values.size() * 2);
  encode(bf16, values, block.data());
  memory.upload(block);
  for (std::size_t done = block.size(); done < bytes; done *= 2)
    cuda_check(cudaMemcpy(memory.data() + done, memory.data(), std::min(done, bytes - done),
                          cudaMemcpyDeviceToDevice),
               "cudaMemcpy on the GPU");
  return memory;
}

// The rows of one sample.
std::vector<float> sample_of(const DeviceMemory& memory, std::int64_t first, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * kRow) * 2);
  memory.download(bytes, static_cast<std::size_t>(first * kRow) * 2);
  std::vector<float> values(bytes.size() / 2);
  decode(bf16, bytes.data(), values);
  return values;
}

class GpuLarge : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    SKIP_UNLESS_AVAILABLE(GetParam(), kDevice);
    std::size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    const std::size_t needed =
        4 * static_cast<std::size_t>(kTokens * kRow) * 2 + (std::size_t{1} << 30);
    if (free < needed) GTEST_SKIP() << needed << " bytes are needed, " << free << " are free";
    q_ = large_tensor(kDevice, 1);
    k_ = large_tensor(kDevice, 2);
    v_ = large_tensor(kDevice, 3);
    out_ = DeviceMemory(kDevice, q_.size());
  }

  // Judges the rows [first, first + count) as one sample of the call.
  void expect_right(std::int64_t first, std::int64_t count) const {
    Geometry geometry;
    geometry.q_rows = geometry.kv_rows = count;
    geometry.samples = {
        {.q_begin = 0, .q_length = count, .q_rows = count, .kv_begin = 0, .kv_length = count}};
    const Inputs inputs{sample_of(q_, first, count), sample_of(k_, first, count),
                        sample_of(v_, first, count)};
    const Expected expected = compute_expected(kProblem, 1 / std::sqrt(double{kDim}), geometry,
                                               inputs, {.device = kDevice});
    const BoundsReport report =
        check_bounds(kProblem, geometry, expected, sample_of(out_, first, count), {});
    for (const Violation& v : report.violations) ADD_FAILURE() << "row " << first << ": " << v.what;
  }

  TensorView view(const DeviceMemory& memory, bool packed) const {
    if (packed) return {memory.data(), bf16, {kTokens, kHeads, kDim}, kDevice};
    return {memory.data(), bf16, {kBatch, kRows, kHeads, kDim}, kDevice};
  }

  static constexpr Device kDevice = Device::cuda(0);
  const Problem kProblem{.dtype = bf16, .num_heads = kHeads, .head_dim = kDim};
  DeviceMemory q_, k_, v_, out_;
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuLarge, testing::Values("cudnn", "cudnn:packed", "single"),
                         [](const auto& backend) {
                           std::string name = backend.param;
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

TEST_P(GpuLarge, DenseBatchPast2To31Elements) {
  Attention attention(kProblem, kDevice, {.backend = GetParam()});
  attention.forward(view(q_, false), view(k_, false), view(v_, false), view(out_, false),
                    {.padding_is_finite = true});
  synchronize(kDevice);
  for (const std::int64_t b : {std::int64_t{0}, kBatch - 2, kBatch - 1})
    expect_right(b * kRows, kRows);
}

TEST_P(GpuLarge, PackedBatchPast2To31Elements) {
  // Unequal samples, so that offsets must be used.
  std::vector<std::int32_t> offsets{0};
  for (std::int64_t b = 1; b < kBatch; ++b)
    offsets.push_back(static_cast<std::int32_t>(b * kRows - b % 2 * 100));
  offsets.push_back(static_cast<std::int32_t>(kTokens));
  Attention attention(kProblem, kDevice, {.backend = GetParam()});
  attention.forward_packed(
      view(q_, true), view(k_, true), view(v_, true), view(out_, true),
      {.offsets_q = offsets, .offsets_kv = offsets, .padding_is_finite = true});
  synchronize(kDevice);
  for (const std::int64_t b : {std::int64_t{0}, kBatch - 2, kBatch - 1}) {
    const auto at = static_cast<std::size_t>(b);
    expect_right(offsets[at], offsets[at + 1] - offsets[at]);
  }
}

}  // namespace
}  // namespace batten::conformance
