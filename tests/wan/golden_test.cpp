// The transformer on the CPU against diffusers, and what a step may be asked for.
#include "wan/golden.hpp"

#include <gtest/gtest.h>

#include <batten/batten.hpp>

#include "fakes/expect_error.hpp"
#include "wan/denoise.hpp"

namespace batten::wan {
namespace {

using batten::testing::expect_error;

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, OnTheCpu) {
  const auto ops = make_cpu_ops(0);
  expect_golden(*ops, GetParam(), DType::f32, "cpu", 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(golden_models()),
                         [](const auto& info) { return info.param; });

struct Small {
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  Checkpoint checkpoint = Checkpoint::open(golden_folder() + "/t2v");
  Weights weights = Weights::load(*ops, checkpoint, DType::f32);
  Shape shape{.batch = 1, .frames = 3, .height = 4, .width = 6};
};

TEST(Session, RefusesShapesThatDoNotFit) {
  Small s;
  const auto refuses = [&](std::string_view says) {
    expect_error(ErrorCode::InvalidArgument, {says},
                 [&] { Session(*s.ops, s.weights, s.shape, {}); });
  };
  s.shape.width = 5;
  refuses("5 columns");
  s.shape.width = 6 * 64;
  refuses("positions for 128");
  s.shape.width = 6;
  s.shape.image_tokens = 3;
  refuses("takes no image");
}

TEST(Session, RefusesInputsOfAnotherSize) {
  Small s;
  Session session(*s.ops, s.weights, s.shape, {});
  const auto bad = ErrorCode::InvalidArgument;
  expect_error(bad, {"expected 12288"}, [&] { session.set_text(0, std::vector<float>(7)); });
  expect_error(bad, {"one a sample (1)"}, [&] { session.set_timesteps(std::vector<float>(5)); });
  std::vector<float> all_different(18);
  for (std::size_t i = 0; i < all_different.size(); ++i) all_different[i] = static_cast<float>(i);
  expect_error(bad, {"more than the 1"}, [&] { session.set_timesteps(all_different); });
}

TEST(Session, SaysWhichBackendRan) {
  Small s;
  Session session(*s.ops, s.weights, s.shape, {.backend = "reference"});
  session.set_text(0, std::vector<float>(512 * 24, 0.1F));
  session.set_timesteps(std::vector<float>{500});
  session.step();
  EXPECT_EQ(session.receipts().at("self").backend(), "reference");
  EXPECT_EQ(session.receipts().at("cross").backend(), "reference");
  EXPECT_THROW(Session(*s.ops, s.weights, s.shape, {.backend = "nonsense"}), Error);
}

TEST(Session, TimesEveryKindOfWork) {
  Small s;
  Session session(*s.ops, s.weights, s.shape, {});
  session.set_text(0, std::vector<float>(512 * 24, 0.1F));
  session.set_timesteps(std::vector<float>{500});
  const Ops::Times times = session.timed_step();
  EXPECT_GT(times.attention, 0);
  EXPECT_GT(times.linear, 0);
  EXPECT_GT(times.other, 0);
}

// Guidance as a batch, in two passes, and by hand from two runs without it.
TEST(Denoise, GuidanceInOneForwardOrTwo) {
  Small s;
  const std::size_t count = 4 * 3 * 4 * 6;
  const std::vector<float> start = noise(count, 5);
  Conditions conditions;
  conditions.text = noise(512 * 24, 1);
  conditions.negative = noise(512 * 24, 2);
  const auto run = [&](DenoiseOptions options, const Conditions& c) {
    Denoiser denoiser(*s.ops, s.weights, s.shape, c, options,
                      Solver::make("unipc", make_schedule("diffusers", 1, 3)));
    std::vector<float> latents = start;
    denoiser.step(latents);
    return latents;
  };
  const std::vector<float> two = run({.guidance = 4}, conditions);
  const std::vector<float> batch = run({.guidance = 4, .cfg_batch = true}, conditions);
  Conditions with = conditions;
  with.negative.clear();
  Conditions without = with;
  without.text = conditions.negative;
  const std::vector<float> yes = run({}, with);
  const std::vector<float> no = run({}, without);
  double error = 0;
  double spread = 0;
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_NEAR(batch[i], two[i], 2e-5);
    // One step from sigma to 0 is linear in the velocity, and so in its guidance.
    error = std::max<double>(error, std::abs(two[i] - (no[i] + 4 * (yes[i] - no[i]))));
    spread = std::max<double>(spread, std::abs(yes[i] - no[i]));
  }
  EXPECT_LT(error, 1e-4);
  EXPECT_GT(spread, 0.05);
}

// The loops of diffusers' pipelines: text, image and first frame to video.
TEST(Denoise, LikeDiffusersPipelines) {
  const auto ops = make_cpu_ops(0);
  for (const char* model : {"t2v", "i2v", "ti2v"})
    for (const char* scheduler : {"unipc", "euler"})
      for (const bool cfg_batch : {false, true})
        expect_denoised(*ops, model, scheduler, "cpu", cfg_batch, 1e-4);
}

TEST(Denoise, NoiseIsNormalAndTheSameEverywhere) {
  const std::vector<float> values = noise(100'000, 7);
  double sum = 0;
  double square = 0;
  for (const float v : values) {
    sum += v;
    square += static_cast<double>(v) * v;
  }
  EXPECT_NEAR(sum / 1e5, 0, 0.02);
  EXPECT_NEAR(square / 1e5, 1, 0.02);
  EXPECT_EQ(noise(3, 7)[2], values[2]);
  EXPECT_NE(noise(3, 8)[2], values[2]);
}

}  // namespace
}  // namespace batten::wan
