// Packed batches of the native backend on a GPU: many samples of different lengths, whose tiles are
// taken by whichever multiprocessor is free.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "backends/native_family.hpp"
#include "conformance/conformance.hpp"
#include "conformance/cuda_support.hpp"
#include "conformance/device_tensor.hpp"
#include "conformance/gpu_test.hpp"
#include "conformance/random.hpp"

namespace batten::conformance {
namespace {

const Device kGpu = Device::cuda(0);

// A packed batch, its offsets on the device, and any of its samples alone.
class NativePacked : public testing::TestWithParam<std::tuple<DType, Mask, int>> {
 protected:
  static constexpr int kHeads = 4, kKvHeads = 2;

  void SetUp() override {
    SKIP_UNLESS_AVAILABLE("native", kGpu);
    const auto [dtype, mask, dim] = GetParam();
    problem_ = {.dtype = dtype,
                .num_heads = kHeads,
                .num_kv_heads = kKvHeads,
                .head_dim = dim,
                .mask = mask,
                .batch_invariant = true};  // else few tiles are divided
    Random random(seed_of("native/packed"));
    for (int i = 0; i < 40; ++i) {
      const std::int64_t most = i % 10 == 0 ? 4000 : 600;
      offsets_.push_back(offsets_.back() + static_cast<std::int32_t>(random.below(most)));
    }
    offsets_.push_back(offsets_.back());  // a sample of nothing
    const auto fill = [&](std::optional<DeviceTensor>& tensor, int heads) {
      tensor.emplace(kGpu, dtype, contiguous_layout({offsets_.back(), heads, dim}));
      std::vector<float> numbers(static_cast<std::size_t>(offsets_.back()) *
                                 static_cast<std::size_t>(heads * dim));
      for (float& x : numbers) x = random.normal();
      tensor->upload(numbers, 0);
    };
    fill(q_, kHeads);
    fill(k_, kKvHeads);
    fill(v_, kKvHeads);
    out_.emplace(kGpu, dtype, contiguous_layout({offsets_.back(), kHeads, dim}));
    on_device_.emplace(kGpu, DType::i32,
                       contiguous_layout({static_cast<std::int64_t>(offsets_.size())}));
    on_device_->upload(offsets_);
  }

  void call(Attention& attention) {
    attention.forward_packed(q_->view(), k_->view(), v_->view(), out_->view(),
                             {.offsets_q = on_device_->view(),
                              .offsets_kv = on_device_->view(),
                              .max_q = 4000,
                              .max_kv = 4000});
  }

  // Rows [first, end) of a packed tensor as a batch of one.
  TensorView rows(const DeviceTensor& tensor, int heads, std::int64_t first,
                  std::int64_t end) const {
    const std::int64_t dim = problem_.head_dim;
    return TensorView(static_cast<std::byte*>(tensor.view().data()) + first * heads * dim * 2,
                      problem_.dtype, {1, end - first, heads, dim}, kGpu);
  }

  Problem problem_;
  std::vector<std::int32_t> offsets_{0};
  std::optional<DeviceTensor> q_, k_, v_, out_, on_device_;
};

// Whatever CTA takes a tile, and whatever else it takes.
TEST_P(NativePacked, EachSampleHasTheBitsThatItHasAlone) {
  const auto [dtype, mask, dim] = GetParam();
  // Alone a sample might have wider blocks.
  const char* const form = dim == 256 ? "native" : native_width("native:128x128");
  Attention attention(problem_, kGpu, {.backend = form});
  out_->fill_bits(0x7fff);
  call(attention);
  synchronize(kGpu);
  const std::vector<std::uint32_t> packed = out_->image();
  out_->fill_bits(0x7fff);
  for (std::size_t i = 0; i + 1 < offsets_.size(); ++i) {
    if (offsets_[i] == offsets_[i + 1]) continue;
    attention.forward(rows(*q_, kHeads, offsets_[i], offsets_[i + 1]),
                      rows(*k_, kKvHeads, offsets_[i], offsets_[i + 1]),
                      rows(*v_, kKvHeads, offsets_[i], offsets_[i + 1]),
                      rows(*out_, kHeads, offsets_[i], offsets_[i + 1]));
  }
  synchronize(kGpu);
  EXPECT_TRUE(packed == out_->image());
}

TEST_P(NativePacked, GivesTheSameBitsUnderOtherLoad) {
  Attention attention(problem_, kGpu, {.backend = "native"});
  out_->fill_bits(0x7fff);
  call(attention);
  synchronize(kGpu);
  const std::vector<std::uint32_t> first = out_->image();
  const CudaStream other;
  DeviceTensor other_out(kGpu, problem_.dtype,
                         contiguous_layout({offsets_.back(), kHeads, problem_.head_dim}));
  for (int turn = 0; turn < 30; ++turn) {
    // Two of different lengths on the other stream, one of which is under way.
    for (const std::int64_t tokens : {std::int64_t{300}, 700 + std::int64_t{turn}})
      attention.forward(rows(*q_, kHeads, 0, tokens), rows(*k_, kKvHeads, 0, tokens),
                        rows(*v_, kKvHeads, 0, tokens), rows(other_out, kHeads, 0, tokens),
                        {.stream = other.get()});
    out_->fill_bits(0x7fff);
    call(attention);
    synchronize(kGpu);
    ASSERT_TRUE(out_->image() == first) << "call " << turn + 1;
  }
}

// max_q is an upper bound, and may be far from what samples have. Some have fewer keys than
// queries, or none: rows that see no key are written, too, and the gap behind the last sample is
// not.
TEST_P(NativePacked, ALongMaxQChangesNothing) {
  const auto [dtype, mask, dim] = GetParam();
  const char* const form = dim == 256 ? "native" : native_width("native:128x128");
  Attention attention(problem_, kGpu, {.backend = form});
  std::vector<std::int32_t> keys{0};
  const std::size_t samples = offsets_.size() - 2;  // the last two are nobody's
  for (std::size_t i = 0; i < samples; ++i) {
    const std::int32_t queries = offsets_[i + 1] - offsets_[i];
    keys.push_back(keys.back() + (i % 3 == 0 ? 0 : i % 3 == 1 ? queries / 3 : queries));
  }
  DeviceTensor offsets_kv(kGpu, DType::i32,
                          contiguous_layout({static_cast<std::int64_t>(keys.size())}));
  offsets_kv.upload(keys);
  DeviceTensor offsets_q(kGpu, DType::i32,
                         contiguous_layout({static_cast<std::int64_t>(samples) + 1}));
  offsets_q.upload(std::vector<std::int32_t>(
      offsets_.begin(), offsets_.begin() + static_cast<std::ptrdiff_t>(samples) + 1));
  out_->fill_bits(0x7fff);
  attention.forward_packed(q_->view(), k_->view(), v_->view(), out_->view(),
                           {.offsets_q = offsets_q.view(),
                            .offsets_kv = offsets_kv.view(),
                            .max_q = 2'000'000,
                            .max_kv = 4000});
  synchronize(kGpu);
  const std::vector<std::uint32_t> packed = out_->image();
  out_->fill_bits(0x7fff);
  for (std::size_t i = 0; i < samples; ++i) {
    if (offsets_[i] == offsets_[i + 1]) continue;
    attention.forward(rows(*q_, kHeads, offsets_[i], offsets_[i + 1]),
                      rows(*k_, kKvHeads, keys[i], keys[i + 1]),
                      rows(*v_, kKvHeads, keys[i], keys[i + 1]),
                      rows(*out_, kHeads, offsets_[i], offsets_[i + 1]));
  }
  synchronize(kGpu);
  EXPECT_TRUE(packed == out_->image());
}

// As many tiles as all CTAs together can remember: one that has had its share leaves the next tile
// to another.
TEST(NativeTakenTiles, AsManyAsOneLaunchTakes) {
  SKIP_UNLESS_AVAILABLE("native", kGpu);
  constexpr std::int64_t kBatch = 1024, kQueries = 128, kKeys = 16, kDim = 64;
  constexpr int kManyHeads = 66;  // 67,584 tiles: 512 for each multiprocessor of an H200
  const auto zeros = [&](std::int64_t rows) {
    DeviceTensor tensor(kGpu, bf16, contiguous_layout({kBatch, rows, kManyHeads, kDim}));
    tensor.fill_bits(0);
    return tensor;
  };
  const DeviceTensor q = zeros(kQueries), k = zeros(kKeys);
  const DeviceTensor out = zeros(kQueries);
  DeviceTensor lse(kGpu, f32, contiguous_layout({kBatch, kQueries, kManyHeads}));
  DeviceTensor lengths(kGpu, DType::i32, contiguous_layout({kBatch}));
  lengths.upload(std::vector<std::int32_t>(kBatch, static_cast<std::int32_t>(kKeys)));
  Attention attention({.dtype = bf16, .num_heads = kManyHeads, .head_dim = kDim}, kGpu,
                      {.backend = "native"});
  for (int turn = 0; turn < 3; ++turn) {
    lse.fill_bits(0x7fc00001);
    attention.forward(q.view(), k.view(), k.view(), out.view(),
                      {.lse = lse.view(), .kv_lengths = lengths.view()});
    synchronize(kGpu);
    const std::vector<float> values = lse.download();
    // All logits are 0.
    EXPECT_TRUE(
        std::ranges::all_of(values, [](float x) { return std::abs(x - std::log(16.f)) < 1e-5; }))
        << "call " << turn + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Problems, NativePacked,
                         testing::Combine(testing::Values(bf16, f16),
                                          testing::Values(Mask::none, Mask::causal),
                                          testing::Values(64, 128, 256)));

}  // namespace
}  // namespace batten::conformance
