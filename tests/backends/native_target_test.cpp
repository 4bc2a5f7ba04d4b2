// Which family of native kernels a device gets, and which of the sm80 family's kernels its shared
// memory allows.
#include <gtest/gtest.h>

#include <string>

#include "backends/native/cost.hpp"
#include "backends/native/sm80/configuration.hpp"
#include "backends/native/target.hpp"
#include "fakes/environment.hpp"
#include "fakes/expect_error.hpp"

namespace batten::impl::native {
namespace {

using batten::testing::CleanEnvironment;
using batten::testing::expect_error;
using batten::testing::ScopedVariable;

constexpr int kKilobyte = 1024;

DeviceProperties device(int arch, int multiprocessors, int kilobytes) {
  DeviceProperties p;
  p.name = "a card";
  p.major = arch / 10;
  p.minor = arch % 10;
  p.multiprocessors = multiprocessors;
  p.shared_memory_per_block = static_cast<std::size_t>(kilobytes) * kKilobyte;
  return p;
}

const DeviceProperties kA100 = device(80, 108, 163);
const DeviceProperties kRtx4090 = device(89, 128, 99);
const DeviceProperties kH200 = device(90, 132, 227);
const DeviceProperties kB200 = device(100, 148, 227);
const DeviceProperties kGb10 = device(121, 48, 99);

Problem problem_of(std::int32_t head_dim) {
  Problem problem;
  problem.dtype = problem.out_dtype = DType::bf16;
  problem.num_heads = problem.num_kv_heads = 16;
  problem.head_dim = problem.head_dim_v = head_dim;
  return problem;
}

Shape shape_of(std::int64_t rows, std::int64_t keys) {
  Shape shape;
  shape.batch = 2;
  shape.max_q = rows;
  shape.max_kv = keys;
  return shape;
}

class NativeTarget : public ::testing::Test {
  CleanEnvironment environment_;
};

TEST_F(NativeTarget, HopperHasAFamilyOfItsOwn) {
  EXPECT_EQ(target_of(kH200).family, Family::sm90);
  EXPECT_FALSE(target_of(kH200).is_forced);
  for (const DeviceProperties& p : {kA100, kRtx4090, kB200, kGb10}) {
    EXPECT_EQ(target_of(p).family, Family::sm80) << p.arch();
  }
  expect_error(ErrorCode::Unavailable, {"native", "sm80 and newer", "sm75"},
               [] { target_of(device(75, 72, 64)); });
}

TEST_F(NativeTarget, TheOtherFamilyOnDemand) {
  const ScopedVariable arch("BATTEN_NATIVE_ARCH", "sm80");
  EXPECT_EQ(target_of(kH200).family, Family::sm80);
  EXPECT_TRUE(target_of(kH200).is_forced);
  EXPECT_FALSE(target_of(kA100).is_forced);
}

TEST_F(NativeTarget, HopperKernelsRunNowhereElse) {
  const ScopedVariable arch("BATTEN_NATIVE_ARCH", "sm90");
  EXPECT_EQ(target_of(kH200).family, Family::sm90);
  expect_error(ErrorCode::Unavailable, {"BATTEN_NATIVE_ARCH", "sm80"}, [] { target_of(kA100); });
}

TEST_F(NativeTarget, OtherValuesAreErrorsThatNameTheLegalOnes) {
  const auto ask = [] { target_of(kH200); };
  {
    const ScopedVariable arch("BATTEN_NATIVE_ARCH", "ampere");
    expect_error(ErrorCode::InvalidArgument, {"BATTEN_NATIVE_ARCH", "ampere", "sm80 or sm90"}, ask);
  }
  const ScopedVariable limit("BATTEN_SMEM_LIMIT", "20");
  expect_error(ErrorCode::InvalidArgument, {"BATTEN_SMEM_LIMIT", "20", "48", "227"}, ask);
}

TEST_F(NativeTarget, ALimitIsNeverMoreThanTheDeviceHas) {
  const ScopedVariable limit("BATTEN_SMEM_LIMIT", "163");
  EXPECT_EQ(target_of(kH200).shared_bytes, 163 * kKilobyte);
  EXPECT_EQ(target_of(kRtx4090).shared_bytes, 99 * kKilobyte);
}

TEST_F(NativeTarget, ACardThatIsNotHereHasWhatItsKindHas) {
  for (const DeviceProperties& p : {kA100, kRtx4090, kH200, kB200, kGb10}) {
    const cost::CardProperties card{.name = p.name, .arch = p.arch(), .multiprocessors = 7};
    EXPECT_EQ(target_of(card).shared_bytes, target_of(p).shared_bytes) << p.arch();
    EXPECT_EQ(target_of(card).multiprocessors, 7);
  }
}

TEST(NativeConfiguration, EveryDeviceHasAKernelForEveryHeadDim) {
  for (const int kilobytes : {99, 163, 227}) {
    const int limit = kilobytes * kKilobyte;
    for (const int dim : sm80::head_dims()) {
      const sm80::Configuration c = sm80::choose(dim, limit);
      ASSERT_GT(c.warps, 0) << dim << " with " << kilobytes;
      EXPECT_EQ(c.head_dim, dim);
      const int ctas = c.ctas(limit);
      EXPECT_LE(c.shared_bytes(), limit);
      EXPECT_LE(ctas * (c.shared_bytes() + kKilobyte), limit + kKilobyte);
      EXPECT_LE(c.warps * ctas, sm80::kMostWarps);
    }
  }
}

TEST(NativeConfiguration, WhatEachAmountOfMemoryGets) {
  const auto chosen = [](int dim, int kilobytes) {
    return sm80::choose(dim, kilobytes * kKilobyte).str(kilobytes * kKilobyte);
  };
  for (const int kilobytes : {163, 227}) {
    EXPECT_EQ(chosen(128, kilobytes), "128x64, 4 warps, 2 CTAs");
    EXPECT_EQ(chosen(192, kilobytes), "128x64, 8 warps, 1 CTA");
    EXPECT_EQ(chosen(256, kilobytes), "128x64, 8 warps, 1 CTA");
  }
  EXPECT_EQ(chosen(128, 99), "128x32, 4 warps, 2 CTAs");
  EXPECT_EQ(chosen(192, 99), "128x64, 8 warps, 1 CTA");
  EXPECT_EQ(chosen(256, 99), "128x32, 8 warps, 1 CTA");
}

// A warp of 32 rows loads little more than half as many fragments for its products as one of 16.
// Eight warps have 32 rows each where two of them share rows. Outputs of head dim 192 leave room
// for the scores of 32 keys only; 16 rows with their queries in registers are as fast.
TEST(NativeConfiguration, WarpsHave32RowsWhereMemoryAllowsIt) {
  for (const int dim : sm80::head_dims()) {
    const sm80::Configuration c = sm80::choose(dim, 163 * kKilobyte);
    EXPECT_EQ(kTileRows * c.sides / c.warps, dim == 192 ? 16 : 32) << dim;
    // Of 255 a thread: fragments, addresses and counters need the rest.
    EXPECT_LE(c.registers(), 192) << dim;
  }
}

TEST(NativeConfiguration, TheChoiceKeepsMostWarpsBusy) {
  for (const int kilobytes : {48, 64, 99, 130, 163, 200, 227}) {
    const int limit = kilobytes * kKilobyte;
    for (const sm80::Configuration& other : sm80::kConfigurations) {
      const sm80::Configuration chosen = sm80::choose(other.head_dim, limit);
      EXPECT_GE(chosen.warps * chosen.ctas(limit), other.warps * other.ctas(limit))
          << other.str(limit) << " with " << kilobytes;
    }
  }
}

TEST(NativeConfiguration, MoreMemoryIsNeverWorse) {
  for (const int dim : sm80::head_dims()) {
    int before = 0;
    for (int kilobytes = 48; kilobytes <= 227; ++kilobytes) {
      const sm80::Configuration c = sm80::choose(dim, kilobytes * kKilobyte);
      const int warps = c.warps * c.ctas(kilobytes * kKilobyte);
      EXPECT_GE(warps, before) << dim << " with " << kilobytes;
      before = warps;
    }
  }
}

TEST_F(NativeTarget, WhatIsServedDependsOnTheFamily) {
  const Target hopper = target_of(kH200);
  const Target ampere = target_of(kA100);
  for (const int dim : {80, 192}) {
    EXPECT_TRUE(why_not(hopper, problem_of(dim))) << dim;
    EXPECT_FALSE(why_not(ampere, problem_of(dim))) << dim;
  }
  for (const Target& target : {hopper, ampere}) {
    EXPECT_FALSE(why_not(target, problem_of(128)));
    EXPECT_NE(why_not(target, problem_of(72)).value_or("").find("72"), std::string::npos);
  }
  // Addresses need no tensor map.
  Shape shape = shape_of(100, 200);
  EXPECT_TRUE(why_not(hopper, problem_of(128), shape, ""));
  EXPECT_FALSE(why_not(ampere, problem_of(128), shape, ""));
}

TEST_F(NativeTarget, FormsOfTheOtherFamilyAreRefused) {
  const Problem problem = problem_of(128);
  const auto why = [&](const DeviceProperties& device, const char* form) {
    return why_not(target_of(device), problem, shape_of(100, 200), form).value_or("");
  };
  for (const char* form : {"", "online", "whole", "divided", "joined"})
    EXPECT_EQ(why(kA100, form), "");
  EXPECT_EQ(why(kH200, "128x144").find("128x144"), std::string::npos);
  EXPECT_NE(why(kA100, "128x144").find("128x144"), std::string::npos);
}

TEST_F(NativeTarget, TooLittleMemoryIsAReason) {
  const Target target{Family::sm80, false, 10, 48 * kKilobyte};
  EXPECT_NE(why_not(target, problem_of(256)).value_or("").find("48 KB"), std::string::npos);
}

TEST_F(NativeTarget, InfoNamesTheKernels) {
  const std::string text = kernels_text(target_of(kRtx4090));
  for (const int dim : sm80::head_dims())
    EXPECT_NE(text.find(std::to_string(dim)), std::string::npos) << text;
  EXPECT_NE(text.find("99 KB"), std::string::npos) << text;
}

// A multiprocessor that computes several CTAs at a time takes the sum of their times.
TEST_F(NativeTarget, CostsAreThoseOfAMultiprocessor) {
  const Target target = target_of(kA100);
  const Problem problem = problem_of(128);
  const Shape shape = shape_of(128 * 108, 4096);  // 32 tiles for each multiprocessor
  const cost::Work work = work_of(target, problem, shape, {});
  EXPECT_GT(kernel_of(target, problem, shape, "").workers.ctas, target.multiprocessors);
  EXPECT_NEAR(work.blocks, 32.0 * 4096 / cost::kUnitKeys, 0.05 * 32 * 32);
}

TEST_F(NativeTarget, EachFamilyHasConstantsOfItsOwn) {
  const cost::CardProperties properties{.name = "x", .arch = 90, .multiprocessors = 132};
  cost::Card card(properties);
  card.set({.kernel = "native", .head_dim = 128, .tile_us = 1, .block_us = 1},
           cost::Origin::shipped);
  card.set({.kernel = "native:sm80", .head_dim = 128, .tile_us = 2, .block_us = 2},
           cost::Origin::shipped);
  const auto own = predict(card, problem_of(128), shape_of(4096, 4096), {});
  ASSERT_TRUE(own);
  EXPECT_EQ(own->kernel, "native");
  EXPECT_TRUE(own->usual);
  const ScopedVariable arch("BATTEN_NATIVE_ARCH", "sm80");
  const auto forced = predict(card, problem_of(128), shape_of(4096, 4096), {});
  ASSERT_TRUE(forced);
  EXPECT_EQ(forced->kernel, "native:sm80");
  EXPECT_FALSE(forced->usual) << "calls that were measured on the card are of the other family";
  EXPECT_GT(forced->us, own->us);
}

TEST_F(NativeTarget, KernelsForLessSharedMemoryAreNotTheCards) {
  const auto is_limited = [](const DeviceProperties& p) { return target_of(p).is_limited; };
  EXPECT_FALSE(is_limited(kA100));
  const ScopedVariable limit("BATTEN_SMEM_LIMIT", "99");
  EXPECT_TRUE(is_limited(kA100));
  EXPECT_FALSE(is_limited(kRtx4090)) << "it has no more";
  EXPECT_FALSE(is_limited(kH200)) << "nothing changes for its own family";
}

TEST_F(NativeTarget, PlansOfOtherSettingsAreOthers) {
  const std::string none = target_settings();
  const ScopedVariable arch("BATTEN_NATIVE_ARCH", "sm80");
  const std::string forced = target_settings();
  EXPECT_NE(none, forced);
  const ScopedVariable limit("BATTEN_SMEM_LIMIT", "99");
  EXPECT_NE(target_settings(), forced);
}

// Two CTAs share a multiprocessor, so twice as many shares are computed at a time.
TEST_F(NativeTarget, FewTilesAreDividedAmongAllThatRunAtATime) {
  const Target target = target_of(kA100);
  const Problem problem = problem_of(128);
  const Shape shape = shape_of(128, 16384);  // 32 tiles
  const Kernel kernel = kernel_of(target, problem, shape, "");
  const DivisionChoice choice = choose_division(problem, shape, "", kernel.keys, kernel.workers);
  ASSERT_TRUE(choice.division.divides());
  EXPECT_EQ(kernel.workers.ctas, 2 * target.multiprocessors);
  EXPECT_GT(choice.division.all_shares(), target.multiprocessors);
  EXPECT_LE(choice.division.all_shares(), kernel.workers.ctas);
}

// 384 tiles of 4096 keys: a round for all CTAs, and 120 tiles that are left. Where a CTA gains
// little from having its multiprocessor for itself, as with the short blocks for 99 KB, they are
// divided.
TEST_F(NativeTarget, WhatIsLeftIsDividedWhereACtaAloneIsSlow) {
  Problem problem = problem_of(128);
  problem.num_heads = 12;
  problem.num_kv_heads = 4;
  Shape shape = shape_of(256, 4096);
  shape.batch = 16;
  const auto division = [&] {
    const Target target = target_of(kH200);
    const Kernel kernel = kernel_of(target, problem, shape, "");
    return choose_division(problem, shape, "", kernel.keys, kernel.workers).division;
  };
  const ScopedVariable arch("BATTEN_NATIVE_ARCH", "sm80");
  EXPECT_FALSE(division().divides());
  const ScopedVariable limit("BATTEN_SMEM_LIMIT", "99");
  EXPECT_TRUE(division().divides());
  EXPECT_EQ(division().whole, 264);
}

}  // namespace
}  // namespace batten::impl::native
