#include "wan/golden.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "wan/denoise.hpp"

namespace batten::wan {
namespace {

// `text` with zeros after each sample's tokens, up to `tokens`.
std::vector<float> padded(const io::TensorEntry& text, std::int64_t tokens) {
  const std::vector<float> values = floats_of(text);
  const auto batch = static_cast<std::size_t>(text.shape[0]);
  const auto given = static_cast<std::size_t>(text.shape[1] * text.shape[2]);
  const auto full = static_cast<std::size_t>(tokens * text.shape[2]);
  std::vector<float> out(batch * full);
  for (std::size_t b = 0; b < batch; ++b)
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(b * given), given,
                out.begin() + static_cast<std::ptrdiff_t>(b * full));
  return out;
}

// A row for each different timestep becomes one for each timestep, in order.
std::vector<float> expanded(std::span<const float> rows, const std::vector<float>& timesteps) {
  std::vector<float> known;
  for (const float t : timesteps)
    if (std::find(known.begin(), known.end(), t) == known.end()) known.push_back(t);
  const std::size_t width = rows.size() / known.size();
  std::vector<float> out;
  for (const float t : timesteps) {
    const auto at =
        static_cast<std::size_t>(std::find(known.begin(), known.end(), t) - known.begin());
    const auto row = rows.subspan(at * width, width);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

// The first tokens of each sample, as many as were recorded.
std::vector<float> leading(std::span<const float> values, const io::TensorEntry& recorded) {
  const auto batch = static_cast<std::size_t>(recorded.shape[0]);
  const std::size_t all = values.size() / batch;
  const auto kept = static_cast<std::size_t>(recorded.shape[1] * recorded.shape[2]);
  std::vector<float> out;
  for (std::size_t b = 0; b < batch; ++b) {
    const auto part = values.subspan(b * all, kept);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

void compare(GoldenErrors& errors, const std::string& name, std::span<const float> got,
             const io::TensorEntry& recorded) {
  const std::vector<float> expected = floats_of(recorded);
  ASSERT_EQ(got.size(), expected.size()) << name;
  double error = 0;
  double norm = 0;
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - expected[i];
    error += difference * difference;
    norm += static_cast<double>(expected[i]) * expected[i];
    // NaN must not pass for small.
    largest = std::isnan(difference) ? INFINITY : std::max(largest, std::abs(difference));
  }
  errors.relative[name] = std::sqrt(error / norm);
  errors.largest[name] = largest / std::sqrt(norm / static_cast<double>(got.size()));
}

}  // namespace

std::string golden_folder() {
  const char* folder = std::getenv("BATTEN_WAN_GOLDEN");
  return folder != nullptr ? folder : BATTEN_SOURCE_GOLDEN;
}

const std::vector<std::string>& golden_models() {
  static const std::vector<std::string> names{"t2v", "t2v_head128", "i2v", "flf2v", "ti2v"};
  return names;
}

std::vector<float> floats_of(const io::TensorEntry& tensor) {
  std::vector<float> values(tensor.bytes / io::dtype_size(tensor.dtype));
  convert(tensor, 0, values.size(), DType::f32, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

GoldenErrors run_golden(Ops& ops, const std::string& model, DType dtype,
                        const std::string& backend) {
  const std::string folder = golden_folder() + "/" + model;
  const auto golden = io::SafetensorsFile::open(folder + "/golden.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const Weights weights = Weights::load(ops, checkpoint, dtype);

  const io::TensorEntry& latents = golden.at("latents");
  const io::TensorEntry& text = golden.at("text");
  const io::TensorEntry* image = golden.find("image");
  const std::vector<float> timesteps = floats_of(golden.at("timesteps"));
  Shape shape{.batch = latents.shape[0],
              .frames = latents.shape[2],
              .height = latents.shape[3],
              .width = latents.shape[4],
              .text_tokens = model == "t2v_head128" ? text.shape[1] : kTextTokens,
              .image_tokens = image != nullptr ? image->shape[1] : 0,
              .timesteps = static_cast<std::int64_t>(
                  std::set<float>(timesteps.begin(), timesteps.end()).size())};
  Session session(ops, weights, shape, {.backend = backend});
  GoldenErrors errors;
  session.set_tap([&](std::string_view name, std::span<const float> values) {
    const io::TensorEntry& recorded = golden.at("tap." + std::string(name));
    if (name == "temb" || name == "time_proj") {
      std::vector<float> used = expanded(values, timesteps);
      compare(errors, std::string(name), used, recorded);
    } else if (name == "context") {
      compare(errors, std::string(name), leading(values, recorded), recorded);
    } else {
      compare(errors, std::string(name), values, recorded);
    }
  });
  session.set_text(0, padded(text, shape.text_tokens));
  if (image != nullptr) session.set_image(floats_of(*image));
  session.set_timesteps(timesteps);
  const std::vector<float> input = floats_of(latents);
  std::copy(input.begin(), input.end(), session.input().begin());
  session.step();
  compare(errors, "output", session.output(0), golden.at("output"));
  session.set_tap({});
  const std::vector<float> first(session.output(0).begin(), session.output(0).end());
  for (int i = 0; i < 3; ++i) {
    session.step();
    EXPECT_TRUE(std::equal(first.begin(), first.end(), session.output(0).begin()))
        << "step " << i + 2 << " gives other bits";
  }
  return errors;
}

void expect_golden(Ops& ops, const std::string& model, DType dtype, const std::string& backend,
                   double bound) {
  const GoldenErrors errors = run_golden(ops, model, dtype, backend);
  const auto golden =
      io::SafetensorsFile::open(golden_folder() + "/" + model + "/golden.safetensors");
  std::size_t taps = 0;
  for (const io::TensorEntry& tensor : golden.tensors()) taps += tensor.name.starts_with("tap.");
  EXPECT_EQ(errors.relative.size(), taps + 1) << "a value on the way was not compared";
  ASSERT_TRUE(errors.relative.contains("output"));
  double worst = 0;
  for (const auto& [name, error] : errors.relative) {
    EXPECT_LT(error, bound) << model << ", " << name;
    worst = std::max(worst, error);
  }
  for (const auto& [name, error] : errors.largest)
    EXPECT_LT(error, 10 * bound) << model << ", the largest of " << name;
  std::printf("%s: relative error %.2e of the output, %.2e at most\n", model.c_str(),
              errors.relative.at("output"), worst);
}

void expect_denoised(Ops& ops, const std::string& model, const std::string& scheduler,
                     const std::string& backend, bool cfg_batch, double bound) {
  const std::string folder = golden_folder() + "/" + model;
  const auto golden = io::SafetensorsFile::open(folder + "/denoise.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const Weights weights = Weights::load(ops, checkpoint, DType::f32);
  const io::TensorEntry& start = golden.at("latents");
  const Shape latent{
      .batch = 1, .frames = start.shape[2], .height = start.shape[3], .width = start.shape[4]};
  Conditions conditions;
  conditions.text = padded(golden.at("prompt_embeds"), kTextTokens);
  conditions.negative = padded(golden.at("negative_prompt_embeds"), kTextTokens);
  if (const io::TensorEntry* image = golden.find("image_embeds")) {
    conditions.image = floats_of(*image);
    conditions.image_tokens = image->shape[1];
  }
  if (const io::TensorEntry* condition = golden.find("condition"))
    conditions.condition = floats_of(*condition);
  const char* const grid = scheduler == "euler" ? "flow-match" : "diffusers";
  Denoiser denoiser(ops, weights, latent, conditions,
                    {.backend = backend, .guidance = 3, .cfg_batch = cfg_batch},
                    Solver::make(scheduler, make_schedule(grid, 4, 3)));
  std::vector<float> latents = floats_of(start);
  while (!denoiser.solver().done()) denoiser.step(latents);
  denoiser.finish(latents);
  GoldenErrors errors;
  compare(errors, "latents", latents, golden.at("expected." + scheduler));
  ASSERT_TRUE(errors.relative.contains("latents"));
  EXPECT_LT(errors.relative["latents"], bound) << model << ", " << scheduler;
}

}  // namespace batten::wan
