// The parts of the command that have rules of their own: percentiles, suggestions, random inputs,
// the names of processors, free memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "half.hpp"
#include "io/text.hpp"
#include "support/cpu.hpp"
#include "support/memory.hpp"
#include "support/normal.hpp"
#include "support/statistics.hpp"
#include "support/suggest.hpp"
#include "support/table.hpp"

namespace batten::tools {
namespace {

std::vector<double> count_to(int n) {
  std::vector<double> values;
  for (int i = 0; i < n; ++i) values.push_back((i * 7919) % n);  // 0 ... n-1, shuffled
  return values;
}

TEST(Statistics, PercentileIsTheElementNearestToTheRank) {
  EXPECT_EQ(percentile(count_to(101), 0.2), 20);
  EXPECT_EQ(percentile(count_to(100), 0.2), 20);  // 19.8
  EXPECT_EQ(median(count_to(100)), 50);           // 49.5: Python rounds ties to even
  EXPECT_EQ(median(count_to(2)), 0);              // 0.5
  EXPECT_EQ(median({7}), 7);
  EXPECT_TRUE(std::isnan(median({})));
}

// Ranks from tables of the sign test: for n = 15 the 4th and the 12th value.
TEST(Statistics, MedianIntervalIsTheSignTests) {
  const auto ranks = [](int n) {
    const MedianInterval m = median_interval(count_to(n));
    return std::vector<double>{m.low, m.high};
  };
  EXPECT_EQ(ranks(15), (std::vector<double>{3, 11}));
  EXPECT_EQ(ranks(20), (std::vector<double>{5, 14}));
  EXPECT_EQ(ranks(100), (std::vector<double>{39, 60}));
  EXPECT_EQ(ranks(6), (std::vector<double>{0, 5}));
  EXPECT_EQ(ranks(3), (std::vector<double>{0, 2}));  // too few: the whole range
  EXPECT_EQ(ranks(1), (std::vector<double>{0, 0}));
  // The approximation for many values continues the exact rule.
  const MedianInterval many = median_interval(count_to(501));
  EXPECT_NEAR(many.low, 228, 1.5);
  EXPECT_NEAR(many.high, 272, 1.5);
}

TEST(Suggest, WordsAndTensors) {
  EXPECT_EQ(io::edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(nearest_word("cuddn", {"native", "cudnn", "cpu"}), "cudnn");
  EXPECT_EQ(nearest_word("torch", {"native", "cudnn", "cpu"}), "");
  EXPECT_EQ(nearest_tensor("q", {"k", "query", "value"}), "query");
  EXPECT_EQ(nearest_tensor("q", {"blocks.0.q", "Q"}), "Q");
  EXPECT_EQ(nearest_tensor("v", {"hidden", "mask"}), "");
  EXPECT_EQ(nearest_tensor("out", {"o_proj", "expected"}), "");
}

class Normal : public testing::TestWithParam<DType> {};

TEST_P(Normal, HasTheMomentsOfTheStandardNormal) {
  constexpr std::size_t kCount = 3'000'001;  // several blocks, the last one odd
  std::vector<std::byte> bytes(kCount * size_of(GetParam()));
  fill_normal(bytes, GetParam(), 1);
  std::vector<float> values(kCount);
  conformance::decode(GetParam(), bytes.data(), values);
  double sum = 0;
  double square = 0;
  double fourth = 0;
  double lag = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = values[i];
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
    if (i > 0) lag += x * static_cast<double>(values[i - 1]);
  }
  constexpr double kN = kCount;
  EXPECT_NEAR(sum / kN, 0, 0.005);
  EXPECT_NEAR(square / kN, 1, 0.01);
  EXPECT_NEAR(fourth / kN, 3, 0.05);
  EXPECT_NEAR(lag / kN, 0, 0.005);
  std::vector<std::byte> again(bytes.size());
  fill_normal(again, GetParam(), 1);
  EXPECT_EQ(again, bytes);
  fill_normal(again, GetParam(), 2);
  EXPECT_NE(again, bytes);
}
INSTANTIATE_TEST_SUITE_P(DTypes, Normal, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& p) { return std::string(name_of(p.param)); });

TEST(Table, AlignsAndLeavesNoTrailingBlanks) {
  Table table({{"name"}, {"n", Align::right}, {"note"}});
  table.add({"cpu", "12", ""});
  table.add({"référence", "3", "ok"});
  EXPECT_EQ(table.str(),
            "name        n  note\n"
            "cpu        12\n"
            "référence   3  ok\n");
}

TEST(Cpu, IsNamedOnX86) {
  const Cpu cpu = parse_cpuinfo(
      "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 106\n"
      "model name\t: Intel(R) Xeon(R) Platinum\nflags\t\t: fpu avx avx2 avx512f avx512_bf16\n\n"
      "processor\t: 1\nmodel name\t: Intel(R) Xeon(R) Platinum\nflags\t\t: fpu avx avx2\n");
  EXPECT_EQ(cpu.model, "Intel(R) Xeon(R) Platinum");
  EXPECT_EQ(cpu.simd, "AVX2 AVX-512 AVX512-BF16");
}

// There Linux says no name, and the cores of one machine may differ.
TEST(Cpu, IsNamedOnAarch64) {
  const auto processor = [](std::string_view implementer, std::string_view part) {
    return fmt::format(
        "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd aes sve sve2 bf16\n"
        "CPU implementer\t: {}\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {}\n\n",
        implementer, part);
  };
  const Cpu grace = parse_cpuinfo(processor("0x41", "0xd4f") + processor("0x41", "0xd4f"));
  EXPECT_EQ(grace.model, "Neoverse-V2");
  EXPECT_EQ(grace.simd, "NEON BF16 SVE SVE2");
  EXPECT_EQ(parse_cpuinfo(processor("0x41", "0xd85") + processor("0x41", "0xd87")).model,
            "Cortex-X925 + Cortex-A725");
  EXPECT_EQ(parse_cpuinfo(processor("0x4e", "0xd4f")).model, "part 0xd4f of implementer 0x4e");
}

TEST(Cpu, IsUnknownWhereNothingIsSaid) {
  for (const std::string_view text : {"", "processor\t: 0", "model name\t:\n", ":\n\n:"}) {
    EXPECT_EQ(parse_cpuinfo(text).model, "unknown") << text;
    EXPECT_EQ(parse_cpuinfo(text).simd, "none") << text;
  }
}

TEST(Memory, OfTheSystem) {
  EXPECT_EQ(available_in("MemTotal:       64 kB\nMemFree:  1 kB\nMemAvailable:    48 kB\n"),
            48 * 1024.0);
  EXPECT_FALSE(available_in("MemTotal: 64 kB\n").has_value());
  EXPECT_FALSE(available_in("").has_value());
}

TEST(Memory, OfAControlGroup) {
  EXPECT_EQ(left_in_group("1000\n", "400\n", "anon 300\ninactive_file 60\nactive_file 5\n"), 660);
  EXPECT_EQ(left_in_group("1000\n", "400\n", ""), 600);
  EXPECT_EQ(left_in_group("100\n", "400\n", ""), 0);
  EXPECT_FALSE(left_in_group("max\n", "400\n", "").has_value());
  EXPECT_FALSE(left_in_group("", "", "").has_value());
}

TEST(Memory, AsText) {
  EXPECT_EQ(bytes_text(1.5 * 1024 * 1024), "1.5 MiB");
  EXPECT_EQ(bytes_text(20.25 * 1024 * 1024 * 1024), "20.2 GiB");
  EXPECT_EQ(bytes_text(1e30), "9.31e+20 GiB");
}

}  // namespace
}  // namespace batten::tools
