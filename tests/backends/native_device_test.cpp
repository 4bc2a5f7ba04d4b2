// The native backend's lazy softmax on a GPU: logits that leave the range which the first block of
// keys suggests, in every way, against the float64 reference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
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
constexpr int kBlock = 128;  // keys of a kernel's step; what matters here is about its size

struct Scene {
  DType dtype = bf16;
  Mask mask = Mask::none;
  int head_dim = 128;
  std::int64_t batch = 1, q = 300, kv = 1000;
  int heads = 2, kv_heads = 1;
  std::optional<double> scale = {};
  std::vector<std::int32_t> kv_lengths = {};
  const char* backend = "native";
  // Keys from here on are -infinity in every element, and so are their logits; -1: none are. For
  // one sample.
  std::int64_t never_from = -1;
  // So are keys before this one.
  std::int64_t never_until = 0;
};

// The logit that key j of a key head is to have with every query.
using Logit = std::function<float(std::int64_t j, std::int64_t head)>;

class NativeLazy : public testing::Test {
 protected:
  void SetUp() override { SKIP_UNLESS_AVAILABLE("native", kGpu); }

  // `spread`: of the logits about their mean; `values`: magnitude of the values.
  static void expect_right(const std::string& what, const Scene& s, const Logit& logit,
                           float spread = 1, float values = 1) {
    Case one;
    one.name = "native/" + what;
    one.problem = {.dtype = s.dtype,
                   .num_heads = s.heads,
                   .num_kv_heads = s.kv_heads,
                   .head_dim = s.head_dim,
                   .mask = s.mask,
                   .scale = s.scale};
    one.batch = s.batch;
    one.q = s.q;
    one.kv = s.kv;
    one.kv_lengths = s.kv_lengths;
    const Geometry geometry = geometry_of(one);
    const double scale = scale_of(one);

    // Queries near 1 in every element, so that an element of a key adds the same to all logits.
    const auto dim = static_cast<std::size_t>(s.head_dim);
    Inputs inputs;
    Random random(seed_of(one.name));
    inputs.q.resize(static_cast<std::size_t>(geometry.q_rows * s.heads) * dim);
    inputs.k.resize(static_cast<std::size_t>(geometry.kv_rows * s.kv_heads) * dim);
    inputs.v.resize(inputs.k.size());
    for (float& x : inputs.q) x = 1 + 0.1f * random.normal();
    for (float& x : inputs.v) x = values * random.normal();
    // In 64 elements whatever the head dim: tensor cores truncate as they add, so products of one
    // sign lose a little with each step, and that is not what is asked about here.
    constexpr int kSteady = 64;
    const auto per_element = static_cast<float>(1 / (scale * kSteady));
    const auto noise = static_cast<float>(spread / (std::abs(scale) * std::sqrt(s.head_dim)));
    for (std::size_t i = 0; i < inputs.k.size(); ++i) {
      const std::size_t row = i / dim;
      const auto head = static_cast<std::int64_t>(row % static_cast<std::size_t>(s.kv_heads));
      const auto j = static_cast<std::int64_t>(row / static_cast<std::size_t>(s.kv_heads)) % s.kv;
      const float steady = i % dim < kSteady ? logit(j, head) * per_element : 0;
      inputs.k[i] = steady + noise * random.normal();
    }

    const auto upload = [&](const std::vector<float>& numbers, std::int64_t rows, int heads) {
      DeviceTensor tensor(kGpu, s.dtype, contiguous_layout({s.batch, rows, heads, s.head_dim}));
      tensor.upload(numbers, 0);
      return tensor;
    };
    std::vector<float> keys = inputs.k;
    const auto seen = static_cast<std::size_t>(s.never_from < 0 ? s.kv : s.never_from);
    const std::size_t end = seen * static_cast<std::size_t>(s.kv_heads) * dim;
    if (s.never_from >= 0) {
      std::fill(keys.begin() + static_cast<std::ptrdiff_t>(end), keys.end(),
                -std::numeric_limits<float>::infinity());
    }
    const auto begin =
        static_cast<std::ptrdiff_t>(s.never_until * s.kv_heads) * static_cast<std::ptrdiff_t>(dim);
    std::fill_n(keys.begin(), begin, -std::numeric_limits<float>::infinity());
    const DeviceTensor q = upload(inputs.q, s.q, s.heads);
    const DeviceTensor k = upload(keys, s.kv, s.kv_heads);
    const DeviceTensor v = upload(inputs.v, s.kv, s.kv_heads);
    DeviceTensor out(kGpu, s.dtype, contiguous_layout({s.batch, s.q, s.heads, s.head_dim}));
    DeviceTensor lse(kGpu, f32, contiguous_layout({s.batch, s.q, s.heads}));
    out.fill_bits(0x7fff);
    lse.fill_bits(0x7fc00001);
    Attention attention(one.problem, kGpu, {.backend = s.backend});
    CallOptions options{.lse = lse.view()};
    if (!s.kv_lengths.empty()) options.kv_lengths = TensorView(one.kv_lengths);
    attention.forward(q.view(), k.view(), v.view(), out.view(), options);
    synchronize(kGpu);

    // As if those keys were not there: the bounds of an infinite logit say nothing.
    if (s.never_from >= 0) {
      one.kv = s.never_from;
      inputs.k.resize(end);
      inputs.v.resize(end);
    }
    one.kv -= s.never_until;
    inputs.k.erase(inputs.k.begin(), inputs.k.begin() + begin);
    inputs.v.erase(inputs.v.begin(), inputs.v.begin() + begin);
    const Geometry seen_geometry = geometry_of(one);
    const Expected expected =
        compute_expected(one.problem, scale, seen_geometry, inputs, {.device = kGpu});
    const BoundsReport report =
        check_bounds(one.problem, seen_geometry, expected, out.download(), lse.download());
    for (const Violation& violation : report.violations)
      ADD_FAILURE() << what << " " << name_of(s.dtype) << " " << s.backend << ": "
                    << violation.what;
  }
};

constexpr DType kDTypes[] = {bf16, f16};

TEST_F(NativeLazy, LogitsThatGrowFromBlockToBlock) {
  // Nats a block: within the range, at its edges, far outside, and downwards.
  for (const DType dtype : kDTypes)
    for (const float step : {0.1f, 1.5f, 5.f, 10.f, 11.f, 12.f, 30.f, 80.f, 88.f, 95.f, 300.f,
                             4000.f, -5.f, -60.f, -300.f})
      for (const int dim : native_head_dims())
        expect_right(
            fmt::format("grow {} d{}", step, dim), {.dtype = dtype, .head_dim = dim},
            [&](std::int64_t j, std::int64_t) { return step * static_cast<float>(j / kBlock); });
}

TEST_F(NativeLazy, OneKeyFarAboveAllOthers) {
  for (const DType dtype : kDTypes)
    for (const Mask mask : {Mask::none, Mask::causal, Mask::causal_top_left})
      for (const float height : {8.f, 40.f, 87.f, 100.f, 1000.f})
        for (const std::int64_t at : {0, 127, 128, 200, 640, 998, 999})
          expect_right(fmt::format("peak {} at {} {}", height, at, name_of(mask)),
                       {.dtype = dtype, .mask = mask},
                       [&](std::int64_t j, std::int64_t) { return j == at ? height : 0; });
}

TEST_F(NativeLazy, OneHeadInRangeAndOneOutside) {
  for (const DType dtype : kDTypes)
    expect_right("two heads", {.dtype = dtype, .batch = 3, .heads = 6, .kv_heads = 2},
                 [](std::int64_t j, std::int64_t head) {
                   return head == 0 ? 0 : 200 * static_cast<float>(j / kBlock);
                 });
}

TEST_F(NativeLazy, FirstBlocksThatManyRowsDoNotSee) {
  for (const DType dtype : kDTypes)
    for (const std::int64_t kv : {1, 100, 129, 300, 500})
      for (const float step : {0.f, 100.f})
        expect_right(
            fmt::format("more rows than keys {} {}", kv, step),
            {.dtype = dtype, .mask = Mask::causal, .q = 700, .kv = kv},
            [&](std::int64_t j, std::int64_t) { return step * static_cast<float>(j / 64); });
}

TEST_F(NativeLazy, EqualAndHugeLogits) {
  for (const DType dtype : kDTypes)
    for (const float level : {0.f, 50.f, -50.f, 3000.f, -3000.f, 9e4f, -9e4f})
      expect_right(
          fmt::format("level {}", level), {.dtype = dtype, .scale = 1.0},
          [&](std::int64_t, std::int64_t) { return level; }, 0);
}

TEST_F(NativeLazy, ValuesAtTheEndsOfTheFormat) {
  // With keys that grow, weights grow: their products must not overflow unseen.
  for (const float step : {0.f, 20.f, 60.f})
    for (const float values : {1e-37f, 1e-20f, 1e20f, 1e35f})
      expect_right(
          fmt::format("values {} step {}", values, step), {.dtype = bf16},
          [&](std::int64_t j, std::int64_t) { return step * static_cast<float>(j / kBlock); }, 1,
          values);
  for (const float step : {0.f, 8.f})
    for (const float values : {1e-4f, 1.5e4f})
      expect_right(
          fmt::format("half values {} step {}", values, step), {.dtype = f16},
          [&](std::int64_t j, std::int64_t) { return step * static_cast<float>(j / kBlock); }, 1,
          values);
}

TEST_F(NativeLazy, EveryTileOfManyIsComputedAgain) {
  for (const DType dtype : kDTypes)
    for (const Mask mask : {Mask::none, Mask::causal})
      expect_right(
          "every tile",
          {.dtype = dtype,
           .mask = mask,
           .batch = 4,
           .q = 1500,
           .kv = 1500,
           .heads = 12,
           .kv_heads = 4},
          [](std::int64_t j, std::int64_t) { return 150 * static_cast<float>(j / kBlock); });
}

TEST_F(NativeLazy, ScalesOfEitherSign) {
  for (const DType dtype : kDTypes)
    for (const double scale : {-0.1, -3.0, 0.02, 5.0})
      for (const float step : {0.f, 3.f, 120.f})
        expect_right(
            fmt::format("scale {} step {}", scale, step),
            {.dtype = dtype, .mask = Mask::causal, .scale = scale},
            [&](std::int64_t j, std::int64_t) { return step * static_cast<float>(j / kBlock); });
}

TEST_F(NativeLazy, ShorterSamplesThatLeaveTheRange) {
  for (const DType dtype : kDTypes)
    expect_right("lengths", {.dtype = dtype, .batch = 5, .kv_lengths = {1000, 0, 1, 513, 640}},
                 [](std::int64_t j, std::int64_t) { return 100 * static_cast<float>(j / kBlock); });
}

// More tiles than multiprocessors, of lengths from 0 on: CTAs take them one by one.
TEST_F(NativeLazy, ManySamplesOfDifferentLengths) {
  Random random(seed_of("native/many lengths"));
  std::vector<std::int32_t> lengths(60);
  for (std::int32_t& n : lengths) n = static_cast<std::int32_t>(random.below(1001));
  lengths[7] = 0;
  lengths[8] = 1000;
  for (const DType dtype : kDTypes)
    for (const Mask mask : {Mask::none, Mask::causal})
      for (const float step : {0.f, 100.f})
        for (const char* backend : {"native", "native:online"})
          expect_right(
              fmt::format("many lengths {}", step),
              {.dtype = dtype,
               .mask = mask,
               .batch = 60,
               .kv_lengths = lengths,
               .backend = backend},
              [&](std::int64_t j, std::int64_t) { return step * static_cast<float>(j / kBlock); });
}

TEST_F(NativeLazy, OnlineThroughoutByItsForm) {
  for (const DType dtype : kDTypes)
    for (const Mask mask : {Mask::none, Mask::causal})
      for (const float step : {0.f, 7.f, 200.f})
        expect_right(
            fmt::format("online {}", step),
            {.dtype = dtype, .mask = mask, .batch = 2, .backend = "native:online"},
            [&](std::int64_t j, std::int64_t) { return step * static_cast<float>(j / kBlock); });
}

TEST_F(NativeLazy, WidthsByTheirForms) {
  for (const DType dtype : kDTypes)
    for (const char* form : {native_width("native:128x128"), native_width("native:128x144")})
      for (const std::int64_t kv : {1, 127, 128, 129, 143, 144, 145, 257, 288, 300, 1000})
        for (const float step : {0.f, 200.f})
          expect_right(
              fmt::format("width {} {}", kv, step), {.dtype = dtype, .kv = kv, .backend = form},
              [&](std::int64_t j, std::int64_t) { return step * static_cast<float>(j / kBlock); });
}

// Many tiles of few blocks, where queries, output and records change places most often. A first
// call finds cold caches, and every other one follows another kernel's.
// ---- divided tiles ------------------------------------------------------------------------------

// Parts of tiles, put together by a second launch or by the first.
constexpr const char* kInParts[] = {"native:divided", "native:joined"};

// From one part a tile to hundreds, tiles of one head and of several, rows and keys that fill none.
TEST_F(NativeLazy, DividedTiles) {
  const Scene scenes[] = {
      {.batch = 4, .q = 128, .kv = 4096, .heads = 12, .kv_heads = 4},
      {.batch = 3, .q = 300, .kv = 1000, .heads = 6, .kv_heads = 3},
      {.q = 1, .kv = 30000, .heads = 1},
      {.q = 1, .kv = 4096, .heads = 12, .kv_heads = 12},
      {.batch = 4, .q = 512, .kv = 1024, .heads = 12, .kv_heads = 4},
      {.q = 1, .kv = 5001, .heads = 40, .kv_heads = 8},
      {.batch = 2, .q = 5, .kv = 3000, .heads = 14, .kv_heads = 2},
      {.batch = 2, .q = 17, .kv = 700, .heads = 12, .kv_heads = 1},
      {.q = 64, .kv = 2000, .heads = 10, .kv_heads = 2},
      {.q = 65, .kv = 2000, .heads = 10, .kv_heads = 2},
      {.q = 1560, .kv = 1560, .heads = 12, .kv_heads = 12},
      {.q = 100, .kv = 100, .heads = 3, .kv_heads = 3},
      {.batch = 2, .q = 1100, .kv = 300, .heads = 8, .kv_heads = 4},
      {.mask = Mask::causal, .batch = 3, .q = 1, .kv = 4000, .heads = 4, .kv_heads = 2},
  };
  for (Scene s : scenes) {
    for (const char* const backend : kInParts) {
      s.backend = backend;
      for (const int dim : native_head_dims()) {
        s.head_dim = dim;
        s.dtype = dim == 96 ? f16 : bf16;
        expect_right(fmt::format("{} {}x{}x{} d{}", backend, s.batch, s.q, s.kv, dim), s,
                     [](std::int64_t, std::int64_t) { return 0.f; });
      }
    }
  }
}

// In some of a tile's parts, in all, or in the first only, which then outweighs all others.
TEST_F(NativeLazy, PartsThatAreComputedAgain) {
  for (const DType dtype : kDTypes)
    for (const std::int64_t kv : {1000, 5000})
      for (const float step : {20.f, 300.f, -300.f})
        for (const std::int64_t q : {3, 300})
          for (const char* const backend : kInParts)
            expect_right(fmt::format("{}, parts again {} {} {}", backend, kv, step, q),
                         {.dtype = dtype, .q = q, .kv = kv, .backend = backend},
                         [&](std::int64_t j, std::int64_t) {
                           return step * static_cast<float>(j / 64 % 5);
                         });
}

// A tile's other parts decide; all of them together are what no weight is left of.
TEST_F(NativeLazy, PartsWithoutAWeight) {
  for (const DType dtype : kDTypes)
    for (const std::int64_t seen : {1, 700, 2999})
      for (const char* const backend : kInParts)
        expect_right(fmt::format("{}, parts without a weight {}", backend, seen),
                     {.dtype = dtype, .kv = 3000, .backend = backend, .never_from = seen},
                     [](std::int64_t, std::int64_t) { return 0.f; });
}

// Where a tile's first keys have no logit, nothing says how small those of the others are: fp16 has
// no weight below 2^-24, bf16 and fp32 none below 2^-126.
TEST_F(NativeLazy, FirstKeysWithoutALogit) {
  for (const DType dtype : kDTypes)
    for (const std::int64_t until : {1, 32, 128, 144, 500})
      for (const float low : {-10.f, -21.f, -87.3f, -120.f})
        for (const char* const backend :
             {"native", "native:divided", "native:joined", "native:online"})
          expect_right(fmt::format("{}, first {} without, others {}", backend, until, low),
                       {.dtype = dtype, .kv = 1000, .backend = backend, .never_until = until},
                       [&](std::int64_t, std::int64_t) { return low; });
}

TEST_F(NativeLazy, ShortTilesGiveTheSameBitsEachTime) {
  const Scene scenes[] = {
      {.q = 5000, .kv = 640, .heads = 12, .kv_heads = 4},
      {.q = 5000, .kv = 640, .heads = 12, .kv_heads = 4, .backend = native_width("native:128x144")},
      {.q = 5000, .kv = 257, .heads = 12, .kv_heads = 12},
      {.dtype = f16, .batch = 2, .q = 2500, .kv = 1024, .heads = 16, .kv_heads = 4},
      {.batch = 2,
       .q = 2500,
       .kv = 1024,
       .heads = 16,
       .kv_heads = 4,
       .backend = native_width("native:128x144")},
      {.batch = 2, .q = 5000, .kv = 100, .heads = 12, .kv_heads = 12},
      {.mask = Mask::causal, .batch = 8, .q = 700, .kv = 700, .heads = 16, .kv_heads = 16},
      {.batch = 4, .q = 128, .kv = 4096, .heads = 12, .kv_heads = 4, .backend = "native:divided"},
      {.q = 1560, .kv = 1560, .heads = 12, .kv_heads = 12, .backend = "native:divided"},
      {.batch = 2, .q = 7, .kv = 9000, .heads = 16, .kv_heads = 2, .backend = "native:divided"},
      {.batch = 4, .q = 128, .kv = 4096, .heads = 12, .kv_heads = 4, .backend = "native:joined"},
      {.q = 1560, .kv = 1560, .heads = 12, .kv_heads = 12, .backend = "native:joined"},
      {.batch = 2, .q = 7, .kv = 9000, .heads = 16, .kv_heads = 2, .backend = "native:joined"},
      {.head_dim = 64, .q = 5000, .kv = 640, .heads = 12, .kv_heads = 4},
      {.head_dim = 96, .q = 5000, .kv = 640, .heads = 12, .kv_heads = 4},
      {.head_dim = 256, .q = 3000, .kv = 320, .heads = 8, .kv_heads = 4},
      {.head_dim = 80, .q = 5000, .kv = 640, .heads = 12, .kv_heads = 4},
      {.head_dim = 192, .q = 3000, .kv = 320, .heads = 8, .kv_heads = 4},
  };
  for (const Scene& s : scenes) {
    if (std::ranges::find(native_head_dims(), s.head_dim) == native_head_dims().end()) continue;
    Random random(seed_of("native/short tiles"));
    const auto upload = [&](std::int64_t rows, int heads) {
      DeviceTensor tensor(kGpu, s.dtype, contiguous_layout({s.batch, rows, heads, s.head_dim}));
      std::vector<float> numbers(static_cast<std::size_t>(s.batch * rows * heads * s.head_dim));
      for (float& x : numbers) x = random.normal();
      tensor.upload(numbers, 0);
      return tensor;
    };
    const DeviceTensor q = upload(s.q, s.heads);
    const DeviceTensor k = upload(s.kv, s.kv_heads);
    const DeviceTensor v = upload(s.kv, s.kv_heads);
    DeviceTensor out(kGpu, s.dtype, contiguous_layout({s.batch, s.q, s.heads, s.head_dim}));
    const Problem problem{.dtype = s.dtype,
                          .num_heads = s.heads,
                          .num_kv_heads = s.kv_heads,
                          .head_dim = s.head_dim,
                          .mask = s.mask};
    Attention attention(problem, kGpu, {.backend = s.backend});
    std::vector<std::uint32_t> first;
    const bool in_parts =
        std::ranges::find(kInParts, std::string_view(s.backend)) != std::end(kInParts);
    for (int turn = 0; turn < (in_parts ? 100 : 30); ++turn) {
      out.fill_bits(0x7fff);
      attention.forward(q.view(), k.view(), v.view(), out.view());
      synchronize(kGpu);
      const std::vector<std::uint32_t> now = out.image();
      if (turn == 0) first = now;
      ASSERT_TRUE(now == first) << s.q << " queries, " << s.kv << " keys, head dim " << s.head_dim
                                << ", " << s.backend << ": call " << turn + 1;
    }
  }
}

// Who waits for whose part, and which of them are computed again, must not show: `loud` keys leave
// the range in some parts of each tile.
TEST_F(NativeLazy, PartsGiveTheSameBitsUnderOtherLoad) {
  constexpr std::int64_t kBatch = 4, kRows = 128, kKeys = 4096, kOtherRows = 1500;
  constexpr int kHeads = 12, kKvHeads = 4, kHeadDim = 128;
  const Problem problem{
      .dtype = bf16, .num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kHeadDim};
  const auto tensor = [](std::int64_t batch, std::int64_t rows, int heads) {
    return DeviceTensor(kGpu, bf16, contiguous_layout({batch, rows, heads, kHeadDim}));
  };
  const auto random_numbers = [](std::int64_t rows, int heads) {
    Random random(seed_of("native/parts under load"));
    std::vector<float> numbers(static_cast<std::size_t>(rows * heads * kHeadDim));
    for (float& x : numbers) x = random.normal();
    return numbers;
  };
  DeviceTensor q = tensor(kBatch, kRows, kHeads), k = tensor(kBatch, kKeys, kKvHeads),
               v = tensor(kBatch, kKeys, kKvHeads), out = tensor(kBatch, kRows, kHeads);
  q.upload(random_numbers(kBatch * kRows, kHeads), 0);
  v.upload(random_numbers(kBatch * kKeys, kKvHeads), 0);
  DeviceTensor other_q = tensor(1, kOtherRows, kHeads), other_k = tensor(1, kOtherRows, kKvHeads),
               other_out = tensor(1, kOtherRows, kHeads);
  other_q.upload(random_numbers(kOtherRows, kHeads), 0);
  other_k.upload(random_numbers(kOtherRows, kKvHeads), 0);
  const CudaStream other;

  for (const bool loud : {false, true}) {
    std::vector<float> keys = random_numbers(kBatch * kKeys, kKvHeads);
    constexpr std::size_t kKey = std::size_t{kKvHeads} * kHeadDim;
    for (std::size_t j = 0; loud && j < keys.size() / kKey; ++j) {
      if (j % 1000 < 990) continue;
      for (std::size_t i = j * kKey; i < (j + 1) * kKey; ++i) keys[i] *= 100;
    }
    k.upload(keys, 0);
    for (const char* const backend : kInParts) {
      Attention attention(problem, kGpu, {.backend = backend});
      Attention beside(problem, kGpu, {.backend = "native"});
      std::vector<std::uint32_t> first;
      for (int turn = 0; turn <= 30; ++turn) {
        for (int i = 0; turn > 0 && i < 1 + turn % 3; ++i) {
          beside.forward(other_q.view(), other_k.view(), other_k.view(), other_out.view(),
                         {.stream = other.get()});
        }
        out.fill_bits(0x7fff);
        attention.forward(q.view(), k.view(), v.view(), out.view());
        synchronize(kGpu);
        if (turn == 0) first = out.image();
        ASSERT_TRUE(out.image() == first) << backend << (loud ? ", loud" : "") << ", " << turn;
      }
    }
  }
}

}  // namespace
}  // namespace batten::conformance
