#include "wan/denoise.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/error.hpp"
#include "wan/random.hpp"

namespace batten::wan {
namespace {

bool guided(const Conditions& conditions, const DenoiseOptions& options) {
  return options.guidance > 1 && !conditions.negative.empty();
}

// TI2V: the model has no channels for an image, its first frame is the image.
bool has_first_frame(const Config& config, const Conditions& conditions) {
  return config.condition_channels() == 0 && !conditions.condition.empty();
}

void append(std::vector<float>& to, const std::vector<float>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

int denoise_passes(const Conditions& conditions, const DenoiseOptions& options) {
  return guided(conditions, options) && !options.cfg_batch ? 2 : 1;
}

Shape denoise_shape(const Config& config, const Shape& latent, const Conditions& conditions,
                    const DenoiseOptions& options) {
  Shape shape = latent;
  shape.batch = conditions.videos * (guided(conditions, options) && options.cfg_batch ? 2 : 1);
  shape.text_tokens = kTextTokens;
  shape.image_tokens = conditions.image_tokens;
  shape.timesteps = has_first_frame(config, conditions) ? 2 : 1;
  return shape;
}

Denoiser::Denoiser(Ops& ops, const Weights& weights, const Shape& latent, Conditions conditions,
                   const DenoiseOptions& options, std::unique_ptr<Solver> solver)
    : config_(weights.config()),
      conditions_(std::move(conditions)),
      options_(options),
      solver_(std::move(solver)),
      passes_(denoise_passes(conditions_, options_)),
      session_(
          ops, weights, denoise_shape(config_, latent, conditions_, options_),
          {.backend = options.backend, .num_threads = options.num_threads, .passes = passes_}) {
  const bool both = guided(conditions_, options_);
  std::vector<float> text = conditions_.text;
  std::vector<float> image = conditions_.image;
  if (both && options_.cfg_batch) {
    append(text, conditions_.negative);
    append(image, conditions_.image);
  }
  session_.set_text(0, text);
  if (passes_ == 2) session_.set_text(1, conditions_.negative);
  if (config_.takes_image()) session_.set_image(image);
}

bool Denoiser::first_frame_given() const noexcept { return has_first_frame(config_, conditions_); }

void Denoiser::set_timesteps(float t) {
  const auto batch = static_cast<std::size_t>(session_.shape().batch);
  if (!first_frame_given()) {
    session_.set_timesteps(std::vector<float>(batch, t));
    return;
  }
  // The given frame is clean: its tokens are told 0.
  const std::size_t tokens = static_cast<std::size_t>(session_.tokens());
  const auto n = grid(config_, session_.shape());
  std::vector<float> timesteps(batch * tokens, t);
  for (std::size_t b = 0; b < batch; ++b)
    std::fill_n(timesteps.begin() + static_cast<std::ptrdiff_t>(b * tokens), n[1] * n[2], 0.0F);
  session_.set_timesteps(timesteps);
}

void Denoiser::set_input(std::span<const float> latents) {
  const Shape& shape = session_.shape();
  const auto plane = static_cast<std::size_t>(shape.pixels());
  const auto out = static_cast<std::size_t>(config_.out_channels);
  const auto in = static_cast<std::size_t>(config_.in_channels);
  const std::span<float> input = session_.input();
  for (std::size_t b = 0; b < static_cast<std::size_t>(shape.batch); ++b) {
    // With both halves of guidance in the batch, each video is there twice.
    const std::size_t video = b % static_cast<std::size_t>(conditions_.videos);
    float* const to = input.data() + b * in * plane;
    std::copy_n(latents.data() + video * out * plane, out * plane, to);
    if (in > out) {
      const std::size_t count = (in - out) * plane;
      std::copy_n(conditions_.condition.data() + video * count, count, to + out * plane);
    }
  }
  if (!first_frame_given()) return;
  const auto per_video = out * plane;
  for (std::size_t b = 0; b < static_cast<std::size_t>(shape.batch); ++b) {
    const std::size_t frame = plane / static_cast<std::size_t>(shape.frames);
    const std::size_t video = b % static_cast<std::size_t>(conditions_.videos);
    for (std::size_t c = 0; c < out; ++c) {
      std::copy_n(conditions_.condition.data() + (video * out + c) * frame, frame,
                  input.data() + b * per_video + c * plane);
    }
  }
}

std::span<const float> Denoiser::velocity() {
  if (!guided(conditions_, options_)) return session_.output(0);
  std::span<const float> with = session_.output(0);
  std::span<const float> without;
  if (passes_ == 2) {
    without = session_.output(1);
  } else {
    without = with.subspan(with.size() / 2);
    with = with.first(with.size() / 2);
  }
  const auto guidance = static_cast<float>(options_.guidance);
  velocity_.resize(with.size());
  for (std::size_t i = 0; i < with.size(); ++i)
    velocity_[i] = without[i] + guidance * (with[i] - without[i]);
  return velocity_;
}

void Denoiser::step(std::span<float> latents) {
  set_timesteps(solver_->schedule().timesteps[static_cast<std::size_t>(solver_->index())]);
  set_input(latents);
  session_.step();
  solver_->step(velocity(), latents);
}

void Denoiser::finish(std::span<float> latents) const {
  if (!first_frame_given()) return;
  const Shape& shape = session_.shape();
  const auto frame = static_cast<std::size_t>(shape.height * shape.width);
  const auto plane = frame * static_cast<std::size_t>(shape.frames);
  const auto planes = static_cast<std::size_t>(conditions_.videos * config_.out_channels);
  for (std::size_t i = 0; i < planes; ++i)
    std::copy_n(conditions_.condition.data() + i * frame, frame, latents.data() + i * plane);
}

std::vector<float> noise(std::size_t count, std::uint64_t seed) {
  // Box and Muller: two uniform numbers in (0, 1) make two normal ones.
  const auto unit = [seed](std::size_t i) {
    return (static_cast<double>(mixed(seed, i) >> 11) + 0.5) * 0x1p-53;
  };
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; i += 2) {
    const double radius = std::sqrt(-2 * std::log(unit(i)));
    const double angle = 2 * std::numbers::pi * unit(i + 1);
    values[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < count) values[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return values;
}

}  // namespace batten::wan
