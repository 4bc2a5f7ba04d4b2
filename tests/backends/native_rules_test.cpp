// What of `native` needs no GPU: what is refused, the width of a block, the order of tiles, and the
// division that the kernels use.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "backends/native/rules.hpp"

#if BATTEN_WITH_NATIVE
#include "backends/native/native.hpp"
#include "backends/native/shared/arguments.hpp"
#include "fakes/fake_device.hpp"
#endif

namespace batten::impl::native {
namespace {

Problem problem_of(std::int32_t head_dim = 128) {
  Problem problem;
  problem.dtype = problem.out_dtype = DType::bf16;
  problem.num_heads = 12;
  problem.num_kv_heads = 4;
  problem.head_dim = problem.head_dim_v = head_dim;
  return problem;
}

Shape shape_of(std::int64_t rows, std::int64_t keys) {
  Shape shape;
  shape.batch = 2;
  shape.max_q = rows;
  shape.max_kv = keys;
  shape.q = shape.out = {rows * 12 * 128, 12 * 128, 128};
  shape.k = shape.v = {keys * 4 * 128, 4 * 128, 128};
  return shape;
}

TEST(NativeRules, RefusesProblemsWithAReason) {
  EXPECT_FALSE(why_not(problem_of()).has_value());
  for (const int dim : {64, 96, 256}) EXPECT_FALSE(why_not(problem_of(dim)).has_value()) << dim;
  EXPECT_NE(why_not(problem_of(72)).value_or("").find("72"), std::string::npos);
  Problem fp32 = problem_of();
  fp32.dtype = DType::f32;
  EXPECT_NE(why_not(fp32).value_or("").find("float32"), std::string::npos);
  Problem uneven = problem_of();
  uneven.head_dim_v = 64;
  EXPECT_NE(why_not(uneven).value_or("").find("equal head dims"), std::string::npos);
}

TEST(NativeRules, RefusesWhatATensorMapCannotSay) {
  const Problem problem = problem_of();
  Shape shape = shape_of(100, 200);
  EXPECT_FALSE(why_not(problem, shape).has_value());
  shape.k.batch = shape.v.head = 0;  // one entry that is not stepped along
  EXPECT_FALSE(why_not(problem, shape).has_value());
  shape.k.row = 0;
  EXPECT_NE(why_not(problem, shape).value_or("").find("k: rows"), std::string::npos);
  shape = shape_of(100, 200);
  shape.v.batch = std::int64_t{1} << 39;
  EXPECT_NE(why_not(problem, shape).value_or("").find("2^40"), std::string::npos);
}

// 16 samples of up to 1,000 rows and keys, one after another.
Shape packed_shape() {
  Shape shape;
  shape.packed = true;
  shape.batch = 16;
  shape.max_q = shape.max_kv = 1000;
  shape.tokens_q = shape.tokens_kv = 9000;
  shape.offsets_q = shape.offsets_kv = Source::device;
  shape.q = shape.out = {0, 12 * 128, 128};
  shape.k = shape.v = {0, 4 * 128, 128};
  return shape;
}

TEST(NativeRules, PackedSamplesAreServed) {
  Shape shape = packed_shape();
  EXPECT_FALSE(why_not(problem_of(), shape).has_value());
  shape.k.row = 0;
  EXPECT_NE(why_not(problem_of(), shape).value_or("").find("k: rows"), std::string::npos);
}

TEST(NativeRules, ALaunchTakesAsManySamplesAsItsParametersHold) {
  const Problem problem = problem_of();
  Shape shape = packed_shape();
  shape.batch = 1000;
  shape.max_q = 100;
  EXPECT_EQ(samples_of_launch(problem, shape, 132), 1000);
  shape.q_lengths = Source::host;
  EXPECT_EQ(samples_of_launch(problem, shape, 132), 257);
  shape.kv_lengths = Source::host;
  EXPECT_EQ(samples_of_launch(problem, shape, 132), 128);
  shape.offsets_q = shape.offsets_kv = Source::host;
  EXPECT_EQ(samples_of_launch(problem, shape, 132), 63);
  shape.batch = 5;
  EXPECT_EQ(samples_of_launch(problem, shape, 132), 5);
}

TEST(NativeRules, TilesOfDifferentSamplesDoNotShareABit) {
  const Problem problem = problem_of();
  Shape shape = packed_shape();
  shape.packed = false;
  shape.offsets_q = shape.offsets_kv = Source::none;
  shape.kv_lengths = Source::device;
  shape.batch = 1000;
  shape.max_q = 20000;  // 157 x 12 tiles
  const std::int64_t samples = samples_of_launch(problem, shape, 132);
  EXPECT_EQ(samples, 512 * 132 / (157 * 12));
  shape.max_q = 10'000'000;
  EXPECT_EQ(samples_of_launch(problem, shape, 132), 1);
  shape.max_q = 0;
  EXPECT_EQ(samples_of_launch(problem, shape, 132), 1000);
}

constexpr int kCtas = 132;
constexpr std::int64_t kToldApart = std::int64_t{512} * kCtas;

// Tiles that the first samples of a packed call may have, where all rows are `of`'s.
std::int64_t tiles_with_rows(const Problem& problem, const Shape& of, std::int64_t samples) {
  const std::int64_t by_max_q = samples * ((of.max_q + 127) / 128);
  return problem.num_heads * std::min(by_max_q, of.tokens_q / 128 + samples);
}

TEST(NativeRules, PackedSamplesAreCountedByTheRowsThatThereAre) {
  const Problem problem = problem_of();
  Shape shape = packed_shape();
  shape.batch = 1000;
  shape.max_q = 20000;      // 35 samples of so many rows
  shape.tokens_q = 100000;  // 781 tiles of 12 heads, and one more for each sample
  EXPECT_EQ(samples_of_launch(problem, shape, kCtas), 1000);
  EXPECT_TRUE(takes_tiles(problem, shape, kCtas));
  shape.tokens_q = 700000;
  EXPECT_EQ(samples_of_launch(problem, shape, kCtas), kToldApart / 12 - 700000 / 128);
  shape.tokens_q = 20'000'000;  // as many as max_q says, for all that is known
  EXPECT_EQ(samples_of_launch(problem, shape, kCtas), kToldApart / (157 * 12));
}

TEST(NativeRules, PackedSamplesLongerThanALaunchByMaxQAlone) {
  Problem problem = problem_of();
  Shape shape = packed_shape();
  shape.max_q = 10'000'000;
  EXPECT_EQ(samples_of_launch(problem, shape, kCtas), 16);
  EXPECT_TRUE(takes_tiles(problem, shape, kCtas));
  // The tiles of a sample share bits here or do not: not as its neighbours would have it.
  problem.batch_invariant = true;
  EXPECT_EQ(samples_of_launch(problem, shape, kCtas), 1);
  EXPECT_FALSE(takes_tiles(problem, shape, kCtas));
  problem.batch_invariant = false;
  shape.tokens_q = 16 * shape.max_q;
  EXPECT_EQ(samples_of_launch(problem, shape, kCtas), 1);
  EXPECT_FALSE(takes_tiles(problem, shape, kCtas));
}

// The workspace is a plan's, and all of its calls have to do with it.
void expect_fits(const Problem& problem, const Shape& shape) {
  const std::int64_t samples = samples_of_launch(problem, shape, kCtas);
  const bool takes = takes_tiles(problem, shape, kCtas);
  SCOPED_TRACE(::testing::Message() << "batch " << shape.batch << ", max_q " << shape.max_q
                                    << ", tokens " << shape.tokens_q << ", samples " << samples);
  EXPECT_GE(samples, 1);
  EXPECT_LE(samples, samples_of_launch(problem, plan_key(shape), kCtas));
  EXPECT_TRUE(!takes || takes_tiles(problem, plan_key(shape), kCtas));
  // Tiles that are taken fit into the lists of all CTAs. Those that are dealt out in rounds have
  // bits of their own, or are one sample's.
  const std::int64_t here = std::min(samples, shape.batch);
  const std::int64_t in_rounds = here * ((shape.max_q + 127) / 128) * problem.num_heads;
  const std::int64_t tiles = takes ? tiles_with_rows(problem, shape, here) : in_rounds;
  EXPECT_TRUE(tiles <= kToldApart || (!takes && here == 1)) << tiles;
}

TEST(NativeRules, APlanStatesTheMostThatItsCallsTake) {
  constexpr std::int64_t kTokens[] = {1, 127, 128, 100000, 700000, 5'000'000, 50'000'000};
  Problem problem = problem_of();
  Shape shape = packed_shape();
  for (shape.batch = 1; shape.batch < 10000; shape.batch *= 7) {
    for (shape.max_q = 1; shape.max_q < 20'000'000; shape.max_q = 2 * shape.max_q + 1) {
      for (const std::int64_t tokens : kTokens) {
        for (const Source source : {Source::device, Source::host}) {
          shape.tokens_q = tokens;
          shape.offsets_q = shape.offsets_kv = source;
          problem.batch_invariant = false;
          expect_fits(problem, shape);
          problem.batch_invariant = true;
          expect_fits(problem, shape);
        }
      }
    }
  }
}

TEST(NativeRules, TilesWithRows) {
  const Problem problem = problem_of();
  Shape shape = packed_shape();
  shape.tokens_q = 9000;
  EXPECT_EQ(most_tiles(problem, shape, 16), (9000 / 128 + 16) * 12);
  shape.max_q = 100;
  EXPECT_EQ(most_tiles(problem, shape, 16), 16 * 12);
  EXPECT_EQ(most_tiles(problem, shape_of(1000, 1000), 2), 2 * 8 * problem_of().num_heads);
}

TEST(NativeRules, LayoutsAndPointersAreNotBakedIn) {
  const Shape shape = shape_of(100, 200);
  Shape other = shape;
  other.k.row += 8;
  other.lse = true;
  EXPECT_EQ(plan_key(shape), plan_key(other));
  other.max_kv = 201;
  EXPECT_NE(plan_key(shape), plan_key(other));
  other = packed_shape();
  other.tokens_q = 123456;
  EXPECT_EQ(plan_key(packed_shape()), plan_key(other));
}

TEST(NativeRules, TheWidthWastesLeast) {
  const Problem problem = problem_of();
  EXPECT_EQ(block_keys(problem, shape_of(128, 257), "", 132), 144);
  EXPECT_EQ(block_keys(problem, shape_of(128, 256), "", 132), 128);
  EXPECT_EQ(block_keys(problem, shape_of(128, 512), "", 132), 128);
  EXPECT_EQ(block_keys(problem, shape_of(128, 4097), "", 132), 128);
  Shape long_keys = shape_of(128, 16384);
  EXPECT_EQ(block_keys(problem, long_keys, "", 132), 128) << "few tiles";
  long_keys.batch = 133;
  EXPECT_EQ(block_keys(problem, long_keys, "", 132), 144);
  EXPECT_EQ(block_keys(problem, shape_of(128, 512), "128x144", 132), 144);
  EXPECT_EQ(block_keys(problem, shape_of(128, 257), "128x128", 132), 128);
  // A sample's bits must not depend on the longest of its batch.
  Problem invariant = problem;
  invariant.batch_invariant = true;
  EXPECT_EQ(block_keys(invariant, shape_of(128, 257), "", 132), 128);
}

TEST(NativeRules, AFormThatIsNotCompiledIsRefused) {
  Problem problem = problem_of();
  for (const std::string& form : forms()) EXPECT_FALSE(why_not_form(problem, form)) << form;
  EXPECT_FALSE(why_not_form(problem, ""));
  problem.mask = Mask::causal;
  EXPECT_FALSE(why_not_form(problem, "128x128"));
  EXPECT_NE(why_not_form(problem, "128x144").value_or("").find("128x144"), std::string::npos);
  EXPECT_NE(why_not_form(problem_of(256), "128x128").value_or("").find("128x80"),
            std::string::npos);
  EXPECT_FALSE(why_not_form(problem_of(256), "online"));
  EXPECT_EQ(block_keys(problem_of(256), shape_of(128, 257), "", 132), 80);
}

TEST(NativeRules, SectionsHoldWholeHeads) {
  constexpr std::int64_t kKeyBytes = 2 * 2 * 128;
  for (const int row_tiles : {1, 2, 8, 32, 128, 1000}) {
    for (const int heads : {1, 12, 16, 256}) {
      const int section = section_heads(row_tiles, heads, 132, row_tiles * 128 * kKeyBytes);
      EXPECT_GE(section, 1);
      EXPECT_LE(section, heads);
    }
  }
  EXPECT_EQ(section_heads(128, 16, 132, 16384 * kKeyBytes), 16);  // eight CTAs share each head
  EXPECT_LE(section_heads(8, 256, 132, 1024 * kKeyBytes), 48);    // 24 MiB
}

#if BATTEN_WITH_NATIVE

TEST(NativeDivisor, DividesAsDivisionDoes) {
  for (std::uint32_t d = 1; d < 3000; d += d < 300 ? 1 : 37) {
    const Divisor divisor(d);
    for (const std::int64_t n :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{d} - 1, std::int64_t{d},
          std::int64_t{d} * 7919, std::int64_t{d} * 7919 - 1, (std::int64_t{1} << 31) - 1,
          std::int64_t{1000003}}) {
      if (n >= std::int64_t{1} << 31) continue;
      ASSERT_EQ(divisor.quotient(static_cast<int>(n)), n / d) << n << " / " << d;
    }
  }
}

TEST(NativeBackend, IsForSm80AndNewer) {
  batten::testing::FakeDevices devices;
  const auto backend = make_native();
  const auto availability = [&](int major, int minor) {
    devices->change_properties(0).major = major;
    devices->change_properties(0).minor = minor;
    return backend->availability(Device::cuda(0));
  };
  EXPECT_EQ(availability(9, 0).library, "sm90 kernels");
  EXPECT_NE(availability(12, 1).library.find("sm80 kernels"), std::string::npos);
  EXPECT_TRUE(availability(8, 0).available);
  EXPECT_NE(availability(7, 5).reason.find("sm75"), std::string::npos);
  EXPECT_FALSE(backend->availability(Device::cpu()).available);
  EXPECT_FALSE(backend->availability(Device::cuda(7)).available);
}

#endif

}  // namespace
}  // namespace batten::impl::native
