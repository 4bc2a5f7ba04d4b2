// Turning noise into a video's latents: the model, guidance and the solver, step by step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "wan/schedule.hpp"
#include "wan/session.hpp"

namespace batten::wan {

// What the videos are to show. A value for each sample where a shape begins with `videos`.
struct Conditions {
  std::int64_t videos = 1;
  std::vector<float> text;      // [videos, kTextTokens, text_dim]
  std::vector<float> negative;  // the same; empty: no guidance
  std::vector<float> image;     // [videos, image_tokens, image_dim]; empty: none
  std::int64_t image_tokens = 0;
  // I2V: mask and encoded image [videos, condition_channels, frames, height, width]. TI2V: the
  // encoded first frame [videos, out_channels, 1, height, width]. Empty: none.
  std::vector<float> condition;
};

struct DenoiseOptions {
  std::string backend = {};
  int num_threads = 0;
  double guidance = 5;     // 1 and below: none
  bool cfg_batch = false;  // both halves of guidance in one forward
};

// The session's shape for such a run. `latent` gives frames, height and width.
Shape denoise_shape(const Config& config, const Shape& latent, const Conditions& conditions,
                    const DenoiseOptions& options);
// Forwards of a step.
int denoise_passes(const Conditions& conditions, const DenoiseOptions& options);

class Denoiser {
 public:
  // Takes memory, and embeds the texts and images.
  Denoiser(Ops& ops, const Weights& weights, const Shape& latent, Conditions conditions,
           const DenoiseOptions& options, std::unique_ptr<Solver> solver);

  // One step; `latents` [videos, out_channels, frames, height, width].
  void step(std::span<float> latents);

  // Puts the first frame of a TI2V run in its place; after the last step.
  void finish(std::span<float> latents) const;

  Solver& solver() noexcept { return *solver_; }
  Session& session() noexcept { return session_; }

 private:
  bool first_frame_given() const noexcept;
  void set_timesteps(float t);
  void set_input(std::span<const float> latents);
  std::span<const float> velocity();

  const Config& config_;
  Conditions conditions_;
  DenoiseOptions options_;
  std::unique_ptr<Solver> solver_;
  int passes_;
  Session session_;
  std::vector<float> velocity_;
};

// Standard normal latents of a video by `seed` alone, the same on every machine.
std::vector<float> noise(std::size_t count, std::uint64_t seed);

}  // namespace batten::wan
