// Values that are NaN or infinite reach the rows that see their keys, in their columns, and no
// other: the native backend beside the float64 reference on the same GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "backends/native_family.hpp"
#include "conformance/conformance.hpp"
#include "conformance/device_tensor.hpp"
#include "conformance/gpu_test.hpp"
#include "conformance/random.hpp"

namespace batten::conformance {
namespace {

const Device kGpu = Device::cuda(0);
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kAllColumns = -1;

struct Planted {
  std::int64_t sample, key;
  int column;
  float value;
};

struct Scene {
  DType dtype = bf16;
  Mask mask = Mask::causal;
  int head_dim = 128;
  std::vector<std::int32_t> q{300}, kv{300};  // of each sample
  bool packed = false;
  const char* backend = "native";
};

class NativeNonFinite : public testing::Test {
 protected:
  static constexpr int kHeads = 4, kKvHeads = 2;

  void SetUp() override { SKIP_UNLESS_AVAILABLE("native", kGpu); }

  static void expect_as_reference(const std::string& what, const Scene& s,
                                  const std::vector<Planted>& planted) {
    Case one;
    one.name = "nonfinite/" + what;
    one.problem = {.dtype = s.dtype,
                   .num_heads = kHeads,
                   .num_kv_heads = kKvHeads,
                   .head_dim = s.head_dim,
                   .mask = s.mask};
    one.form = s.packed ? Form::packed : Form::bshd;
    one.batch = static_cast<std::int64_t>(s.q.size());
    one.q = *std::max_element(s.q.begin(), s.q.end());
    one.kv = *std::max_element(s.kv.begin(), s.kv.end());
    one.q_lengths = s.q;
    one.kv_lengths = s.kv;
    const Geometry geometry = geometry_of(one);
    Inputs inputs = make_inputs(one, geometry, Garbage::nan);
    for (const Planted& p : planted) {
      const std::int64_t key =
          geometry.samples[static_cast<std::size_t>(p.sample)].kv_begin + p.key;
      // The last key head, so that neighbours in memory are another sample's.
      const auto first = static_cast<std::size_t>((key * kKvHeads + kKvHeads - 1) * s.head_dim);
      for (int i = 0; i < s.head_dim; ++i)
        if (p.column == kAllColumns || p.column == i)
          inputs.v[first + static_cast<std::size_t>(i)] = p.value;
    }

    const auto upload = [&](const std::vector<float>& numbers, std::int64_t rows, int heads) {
      DeviceTensor tensor(kGpu, s.dtype, layout_of(one, rows, heads));
      tensor.upload(numbers, kNan);
      return tensor;
    };
    const DeviceTensor q = upload(inputs.q, geometry.q_rows, kHeads);
    const DeviceTensor k = upload(inputs.k, geometry.kv_rows, kKvHeads);
    const DeviceTensor v = upload(inputs.v, geometry.kv_rows, kKvHeads);
    const auto compute = [&](const char* backend) {
      DeviceTensor out(kGpu, s.dtype, layout_of(one, geometry.q_rows, kHeads));
      out.fill_bits(0);
      Attention attention(one.problem, kGpu, {.backend = backend});
      if (s.packed) {
        attention.forward_packed(
            q.view(), k.view(), v.view(), out.view(),
            {.offsets_q = geometry.offsets_q, .offsets_kv = geometry.offsets_kv});
      } else {
        attention.forward(q.view(), k.view(), v.view(), out.view(),
                          {.q_lengths = TensorView(s.q), .kv_lengths = TensorView(s.kv)});
      }
      synchronize(kGpu);
      return out.download();
    };
    const std::vector<float> expected = compute("reference");
    const std::vector<float> got = compute(s.backend);
    const double tolerance = 16 * epsilon_of(s.dtype);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool same = std::isfinite(expected[i]) ? std::abs(got[i] - expected[i]) <= tolerance
                        : std::isnan(expected[i])  ? std::isnan(got[i])
                                                   : got[i] == expected[i];
      const auto dim = static_cast<std::size_t>(s.head_dim);
      ASSERT_TRUE(same) << what << " " << name_of(s.dtype) << " " << name_of(s.mask) << " d"
                        << s.head_dim << " " << s.backend << ": row " << i / dim / kHeads
                        << ", head " << i / dim % kHeads << ", column " << i % dim << " is "
                        << got[i] << ", expected " << expected[i];
    }
  }

 private:
  static TensorLayout layout_of(const Case& one, std::int64_t rows, int heads) {
    std::vector<std::int64_t> shape{rows, heads, one.problem.head_dim};
    if (one.form == Form::bshd) shape = {one.batch, rows / one.batch, heads, one.problem.head_dim};
    return contiguous_layout(shape);
  }
};

constexpr DType kDTypes[] = {bf16, f16};
constexpr Mask kCausal[] = {Mask::causal, Mask::causal_top_left};

TEST_F(NativeNonFinite, OneKey) {
  for (const DType dtype : kDTypes)
    for (const Mask mask : {Mask::none, Mask::causal, Mask::causal_top_left})
      for (const float value : {kNan, kInfinity, -kInfinity})
        for (const std::int64_t key : {0, 1, 63, 64, 100, 127, 128, 200, 299})
          for (const int column : {kAllColumns, 0, 77})
            expect_as_reference(fmt::format("{} at {}, column {}", value, key, column),
                                {.dtype = dtype, .mask = mask}, {{0, key, column, value}});
}

TEST_F(NativeNonFinite, KeysThatNoRowOrFewRowsSee) {
  for (const Mask mask : kCausal)
    for (const std::int32_t rows : {1, 40, 130, 700})
      for (const std::int64_t key : {0, 39, 40, 100, 199})
        expect_as_reference(fmt::format("{} rows, key {}", rows, key),
                            {.mask = mask, .q = {rows}, .kv = {200}},
                            {{0, key, kAllColumns, kNan}});
}

TEST_F(NativeNonFinite, BothInfinitiesInOneColumn) {
  for (const DType dtype : kDTypes)
    for (const int dim : native_head_dims())
      for (const char* backend : {"native", "native:online"})
        expect_as_reference("both", {.dtype = dtype, .head_dim = dim, .backend = backend},
                            {{0, 10, 3, kInfinity},
                             {0, 70, 3, -kInfinity},
                             {0, 200, 3, kInfinity},
                             {0, 150, 50, -kInfinity},
                             {0, 151, 51, kInfinity},
                             {0, 260, 63, kNan}});
}

TEST_F(NativeNonFinite, SamplesOfOtherLengths) {
  for (const bool packed : {false, true})
    for (const Mask mask : {Mask::none, Mask::causal, Mask::causal_top_left})
      for (const std::int64_t key : {0, 50, 99})
        expect_as_reference(
            fmt::format("{} key {}", packed ? "packed" : "lengths", key),
            {.mask = mask, .q = {130, 77, 0, 300}, .kv = {100, 300, 5, 129}, .packed = packed},
            {{0, key, kAllColumns, kNan}, {1, 3 * key, 5, kInfinity}, {3, key, 9, -kInfinity}});
}

}  // namespace
}  // namespace batten::conformance
