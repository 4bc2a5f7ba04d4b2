// `batten wan denoise`: from noise and text embeddings to a video's latents.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "io/text.hpp"
#include "support/command_line.hpp"
#include "support/console.hpp"
#include "support/exit_code.hpp"
#include "support/interrupt.hpp"
#include "support/options.hpp"
#include "support/output.hpp"
#include "support/progress.hpp"
#include "support/receipt.hpp"
#include "support/statistics.hpp"
#include "support/wan_input.hpp"
#include "support/wan_model.hpp"
#include "support/wan_state.hpp"
#include "verbs.hpp"
#include "wan/denoise.hpp"

namespace batten::tools {
namespace {

struct WanDenoiseOptions {
  std::string model;
  std::string prompt;
  std::string negative;
  std::string image;
  std::string start;
  std::string output;
  VideoOptions video;
  DeviceOptions device;
  std::string backend;
  std::string scheduler = "unipc";
  std::string sigmas;
  int steps = 50;
  double guidance = 5;
  double shift = 3;
  std::optional<std::uint64_t> seed;
  int save_every = 5;
  bool cfg_batch = false;
  bool resume = false;
  bool dry_run = false;
  bool json = false;
};

// Tells inputs apart, so that a run is resumed with those it began with.
std::string fingerprint(const std::vector<float>& values) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::byte byte : std::as_bytes(std::span(values)))
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ULL;
  return fmt::format("{:016x}", hash);
}

class WanDenoise {
 public:
  WanDenoise(WanDenoiseOptions options, std::string command, const Console& console)
      : o_(std::move(options)),
        command_(std::move(command)),
        console_(console),
        info_(library_info()) {
    check_usage();
    warn_of_unused();
    checkpoint_ = wan::Checkpoint::open(o_.model);
    latent_ = latent_shape(config(), o_.video);
    read_conditions();
    options_ = {.backend = o_.backend,
                .num_threads = o_.device.threads,
                .guidance = o_.guidance,
                .cfg_batch = o_.cfg_batch};
    passes_ = wan::denoise_passes(conditions_, options_);
    shape_ = wan::denoise_shape(config(), latent_, conditions_, options_);
    wan::check(config(), shape_);
    schedule_ = wan::make_schedule(o_.sigmas, o_.steps, o_.shift);
    solver_ = wan::Solver::make(o_.scheduler, schedule_);
  }

  int run() {
    begin_state();
    started_ = utc_time();
    if (state_.complete()) {
      print_plan();
      print_result("complete already");
      return kExitOk;
    }
    device_ = open_device(o_.device, o_.backend, info_);
    check_backend(o_.backend, config(), device_);
    need_ = memory_need(config(), shape_, device_.dtype, passes_);
    check_memory(need_, device_);
    // Before the weights are read: a name that is missing is said at once.
    checkpoint_->check(wan::make_layout(config(), device_.dtype));
    if (!o_.dry_run) prepare_output(o_.output);
    print_plan();
    if (o_.dry_run) {
      print_result("not run");
      return kExitOk;
    }
    const wan::Weights weights = wan::Weights::load(*device_.ops, *checkpoint_, device_.dtype);
    wan::Denoiser denoiser(*device_.ops, weights, latent_, conditions_, options_,
                           std::move(solver_));
    denoiser.solver().resume(state_.done, state_.history);
    steps(denoiser);
    receipts_ = denoiser.session().receipts();
    if (state_.done == 0) throw Interrupted();  // before the first step: there is nothing to save
    if (!state_.complete()) {
      print_result("interrupted");
      console_.error(
          fmt::format("interrupted after {} of {} steps, which are in '{}'; go on with "
                      "--resume",
                      state_.done, o_.steps, io::printable_path(o_.output)));
      return kExitInterrupted;
    }
    print_result("complete");
    return kExitOk;
  }

 private:
  const wan::Config& config() const { return checkpoint_->config(); }
  std::uint64_t seed() const { return o_.seed.value_or(0); }

  void check_usage() {
    const auto known = [](const char* option, const std::string& value,
                          const std::vector<std::string>& names) {
      if (std::find(names.begin(), names.end(), value) == names.end()) {
        throw UsageError(
            fmt::format("{}: '{}' is none of {}", option, value, fmt::join(names, ", ")));
      }
    };
    known("--scheduler", o_.scheduler, wan::Solver::names());
    if (o_.sigmas.empty()) o_.sigmas = o_.scheduler == "euler" ? "flow-match" : "diffusers";
    known("--sigmas", o_.sigmas, wan::grid_names());
    if (o_.steps < 1 || o_.steps > 1000)
      throw UsageError(fmt::format("--steps: {} is none of 1 to 1000", o_.steps));
    if (!std::isfinite(o_.shift) || o_.shift <= 0)
      throw UsageError(fmt::format("--shift: {} is not a positive number", o_.shift));
    if (!std::isfinite(o_.guidance) || o_.guidance < 0)
      throw UsageError(fmt::format("--guidance: {} is not a number from 0 on", o_.guidance));
    if (o_.save_every < 1)
      throw UsageError(fmt::format("--save-every: {} is less than 1", o_.save_every));
    if (o_.scheduler == "unipc" && o_.sigmas == "flow-match")
      throw UsageError(
          "--sigmas flow-match begins at 1, where unipc cannot; take diffusers or wan");
    if (!o_.backend.empty()) check_backend_name("--backend", o_.backend, info_);
  }

  void warn_of_unused() const {
    if (o_.guidance <= 1 && !o_.negative.empty())
      console_.warning("--guidance {} is none: --negative-embeds is not used", o_.guidance);
    if (o_.guidance <= 1 && o_.cfg_batch)
      console_.warning("--guidance {} is none: --cfg-batch is not used", o_.guidance);
    if (o_.seed && !o_.start.empty())
      console_.warning("--latents holds the noise: --seed {} is not used", *o_.seed);
  }

  void read_conditions() {
    FloatTensor text = read_text(o_.prompt, {"prompt_embeds", "text"}, config());
    conditions_.videos = text.shape[0];
    conditions_.text = std::move(text.values);
    read_negative();
    read_image();
  }

  void read_negative() {
    if (o_.guidance <= 1) return;
    constexpr const char* kName = "negative_prompt_embeds";
    std::string path = o_.negative;
    if (path.empty() && has_tensor(o_.prompt, kName)) path = o_.prompt;
    if (path.empty()) {
      throw UsageError(
          fmt::format("--guidance {}: needs --negative-embeds, or a tensor '{}' in the prompt's "
                      "file; --guidance "
                      "1 does without",
                      o_.guidance, kName));
    }
    std::vector<std::string> names{kName};
    if (path == o_.negative) names.insert(names.end(), {"prompt_embeds", "text"});
    FloatTensor text = read_text(path, names, config());
    repeat(text, conditions_.videos, "negative embeddings");
    conditions_.negative = std::move(text.values);
  }

  void read_image() {
    const wan::Config& c = config();
    const bool wanted = c.takes_image() || c.condition_channels() > 0;
    if (o_.image.empty()) {
      if (wanted) {
        throw UsageError(
            "--image-embeds is missing: this model shows an image, and needs its 'condition'"
            " (mask and encoded image) and, for Wan2.1, its 'image_embeds'");
      }
      return;
    }
    if (c.takes_image()) {
      FloatTensor image =
          read_tensor(o_.image, "image_embeds", {-1, -1, c.image_dim}, "an image embedding");
      join_images(image);
      repeat(image, conditions_.videos, "image embeddings");
      conditions_.image_tokens = image.shape[1];
      conditions_.image = std::move(image.values);
    }
    // Wan2.2 5B has no channels for it: the encoded image is the first frame.
    const bool first = c.condition_channels() == 0;
    FloatTensor condition =
        read_tensor(o_.image, "condition",
                    {-1, first ? c.out_channels : c.condition_channels(),
                     first ? 1 : latent_.frames, latent_.height, latent_.width},
                    first ? "the encoded first frame" : "mask and encoded image");
    repeat(condition, conditions_.videos, "conditions");
    conditions_.condition = std::move(condition.values);
  }

  // A model of two images takes their tokens in one row; diffusers gives a row to each.
  void join_images(FloatTensor& image) const {
    const std::int64_t tokens = config().image_pos_tokens;
    if (tokens == 0 || image.shape[1] == tokens) return;
    if (image.shape[1] * 2 != tokens || image.shape[0] % 2 != 0) {
      fail(ErrorCode::InvalidArgument,
           "'{}': image_embeds have {} tokens, the model takes {}: those of a first and a last "
           "image",
           io::printable_path(o_.image), image.shape[1], tokens);
    }
    image.shape[0] /= 2;
    image.shape[1] = tokens;
  }

  std::vector<std::int64_t> latents_shape() const {
    return {conditions_.videos, config().out_channels, latent_.frames, latent_.height,
            latent_.width};
  }

  // New noise, or what an interrupted run has left.
  void begin_state() {
    std::optional<WanState> there = load_state(o_.output);
    state_.shape = latents_shape();
    std::size_t count = 1;
    for (const std::int64_t extent : state_.shape) count *= static_cast<std::size_t>(extent);
    state_.latents = o_.start.empty()
                         ? wan::noise(count, seed())
                         : read_tensor(o_.start, "latents", state_.shape, "the latent").values;
    state_.run = run_json();
    if (!there) return;
    if (!o_.resume) {
      if (there->complete() || o_.dry_run) return;  // replaced, as by any other verb
      fail(ErrorCode::InvalidArgument,
           "'{}' holds {} steps of a run that was interrupted; go on with --resume, or remove it",
           io::printable_path(o_.output), there->done);
    }
    check_same_run(*there, state_.run, o_.output);
    if (there->shape != state_.shape) {
      fail(
          ErrorCode::InvalidArgument,
          "'{}' holds latents [{}], and this run makes [{}]; resume with the same size and prompts",
          io::printable_path(o_.output), fmt::join(there->shape, ", "),
          fmt::join(state_.shape, ", "));
    }
    state_ = std::move(*there);
  }

  Json run_json() const {
    return {{"config", config_json(config())},
            {"scheduler", o_.scheduler},
            {"sigmas", o_.sigmas},
            {"shift", o_.shift},
            {"steps", o_.steps},
            {"guidance", o_.guidance},
            {"seed", seed()},
            {"prompt", fingerprint(conditions_.text)},
            {"negative", fingerprint(conditions_.negative)},
            {"image", fingerprint(conditions_.image)},
            {"condition", fingerprint(conditions_.condition)},
            {"start", fingerprint(state_.latents)}};
  }

  void steps(wan::Denoiser& denoiser) {
    using Clock = std::chrono::steady_clock;
    Progress progress(static_cast<std::size_t>(o_.steps));
    int unsaved = 0;
    while (!denoiser.solver().done() && !interrupted()) {
      progress.update(static_cast<std::size_t>(state_.done), pace());
      const auto start = Clock::now();
      denoiser.step(state_.latents);
      seconds_.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      state_.done = denoiser.solver().index();
      console_.info("step {} of {}: {:.3f} s", state_.done, o_.steps, seconds_.back());
      if (denoiser.solver().done()) break;
      if (++unsaved == o_.save_every) {
        save(denoiser);
        unsaved = 0;
      }
    }
    if (denoiser.solver().done()) denoiser.finish(state_.latents);
    if (denoiser.solver().done() || unsaved > 0) save(denoiser);
    progress.clear();
  }

  void save(wan::Denoiser& denoiser) {
    state_.history = denoiser.solver().history();
    save_state(o_.output, state_);
  }

  // "0.94 s/step, 0:43 left"
  std::string pace() const {
    if (seconds_.empty()) return "";
    const double each = median(seconds_);
    const auto left = static_cast<std::int64_t>(each * (o_.steps - state_.done));
    return fmt::format("{:.2f} s/step, {}:{:02} left", each, left / 60, left % 60);
  }

  // What is about to run; also seen where stdout is a pipe. JSON is one document, at the end.
  void print_plan() const {
    if (o_.json) return;
    const wan::Flops f = wan::flops(config(), shape_);
    fmt::print("{}: {} layers, {} x {}{}, {} names\n", checkpoint_->source(), config().layers,
               config().heads, config().head_dim,
               device_.ops ? fmt::format(", {}", name_of(device_.dtype)) : "",
               checkpoint_->native_names() ? "Wan's own" : "diffusers'");
    fmt::print(
        "{} video{} of {} x {} x {} frames: {} tokens; {} forward{} of {:.4g} TFLOP a step\n",
        conditions_.videos, conditions_.videos == 1 ? "" : "s", o_.video.width, o_.video.height,
        o_.video.frames, wan::tokens(config(), shape_), passes_, passes_ == 1 ? "" : "s",
        f.total() / 1e12);
    if (device_.ops) {
      fmt::print("on {}: weights {}, activations {}; {}\n", device_.device.str(),
                 size_text(need_.weights), size_text(need_.session), device_.ops->library());
    }
    fmt::print("{} on the grid {}, shift {}, {} steps: sigma {:.6f} to {:.6f}, then 0\n",
               o_.scheduler, o_.sigmas, o_.shift, o_.steps, schedule_.sigmas.front(),
               schedule_.sigmas[static_cast<std::size_t>(o_.steps) - 1]);
    std::fflush(stdout);
  }

  void print_result(const char* status) const {
    if (o_.json) {
      fmt::print("{}\n", report(status).dump(2));
      return;
    }
    for (const auto& [which, receipt] : receipts_)
      fmt::print("{} attention: {}\n", which, receipt_text(receipt));
    if (o_.dry_run && device_.ops) {
      fmt::print("not run (--dry-run)\n");
      return;
    }
    fmt::print("{}: {} of {} steps{}; latents float32 [{}] in {}\n", status, state_.done, o_.steps,
               seconds_.empty() ? "" : fmt::format(", {:.3f} s each", median(seconds_)),
               fmt::join(state_.shape, ", "), io::printable_path(o_.output));
  }

  Json report(const char* status) const {
    Json j{{"status", status},
           {"environment", environment_json(info_, device_.device)},
           {"command", command_},
           {"date", started_},
           {"model", checkpoint_->source()},
           {"native_names", checkpoint_->native_names()},
           {"config", config_json(config())},
           {"videos", conditions_.videos},
           {"width", o_.video.width},
           {"height", o_.video.height},
           {"frames", o_.video.frames},
           {"latent", {latent_.frames, latent_.height, latent_.width}},
           {"tokens", wan::tokens(config(), shape_)},
           {"forwards", passes_},
           {"batch_size", shape_.batch},
           {"flops", flops_json(wan::flops(config(), shape_))},
           {"guidance", o_.guidance},
           {"seed", seed()},
           {"schedule",
            {{"scheduler", o_.scheduler},
             {"grid", schedule_.grid},
             {"shift", schedule_.shift},
             {"sigmas", schedule_.sigmas},
             {"timesteps", schedule_.timesteps}}},
           {"steps_done", state_.done},
           {"output", o_.output}};
    if (device_.ops) {
      j["device"] = device_.device.str();
      j["dtype"] = name_of(device_.dtype);
      j["memory"] = memory_json(need_);
      j["linear_library"] = device_.ops->library();
    }
    if (!seconds_.empty()) {
      j["seconds_per_step"] = median(seconds_);
      j["samples_seconds"] = seconds_;
    }
    for (const auto& [which, receipt] : receipts_) j["receipts"][which] = receipt_json(receipt);
    return j;
  }

  WanDenoiseOptions o_;
  std::string command_;
  const Console& console_;
  std::string started_;
  LibraryInfo info_;
  std::optional<wan::Checkpoint> checkpoint_;
  wan::Shape latent_;
  wan::Shape shape_;
  wan::Conditions conditions_;
  wan::DenoiseOptions options_;
  int passes_ = 1;
  wan::Schedule schedule_;
  std::unique_ptr<wan::Solver> solver_;
  WanDevice device_;
  MemoryNeed need_;
  WanState state_;
  std::vector<double> seconds_;
  std::map<std::string, Receipt> receipts_;
};

}  // namespace

Verb add_wan_denoise(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand("denoise", "Make a video's latents with a Wan transformer");
  auto o = std::make_shared<WanDenoiseOptions>();
  app->add_option("--model", o->model,
                  "A diffusers folder (of the pipeline or the transformer), Wan's own folder, or "
                  "one safetensors file")
      ->required()
      ->type_name("PATH");
  app->add_option(
         "--prompt-embeds", o->prompt,
         "Text embeddings: tensor prompt_embeds [videos, tokens, width], at most 512 tokens")
      ->required()
      ->type_name("FILE");
  app->add_option("--negative-embeds", o->negative,
                  "The same for the negative prompt [tensor negative_prompt_embeds of the prompt's "
                  "file]")
      ->type_name("FILE");
  app->add_option("--image-embeds", o->image,
                  "For I2V: tensors image_embeds [videos, tokens, width] and condition [videos, "
                  "channels, frames, rows, columns]")
      ->type_name("FILE");
  app->add_option("--latents", o->start, "Noise to begin with: tensor latents [from --seed]")
      ->type_name("FILE");
  app->add_option("-o,--output", o->output, "File to write: latents float32")
      ->required()
      ->type_name("OUT");
  add_video_options(*app, o->video);
  const auto value = [&](const char* name, auto& target, const char* type, const char* help) {
    app->add_option(name, target, help)->capture_default_str()->type_name(type);
  };
  value("--steps", o->steps, "N", "Denoising steps");
  value("--guidance", o->guidance, "X", "Classifier-free guidance; 1: none");
  app->add_flag("--cfg-batch", o->cfg_batch,
                "Both halves of guidance in one forward, not in two: more memory");
  value("--shift", o->shift, "X", "Of the schedule: 3 for 480p, 5 for 720p");
  value("--scheduler", o->scheduler, "NAME", "unipc (bh2, order 2) or euler");
  app->add_option("--sigmas", o->sigmas,
                  "Sigma grid: diffusers, wan (Wan's own) or flow-match (diffusers' Euler) "
                  "[diffusers; flow-match for euler]")
      ->type_name("NAME");
  app->add_option("--seed", o->seed, "Of the noise [0]")->type_name("N");
  app->add_option("--backend", o->backend, "Backend of batten [BATTEN_BACKEND, else auto]")
      ->type_name("NAME");
  add_device_options(*app, o->device);
  value("--save-every", o->save_every, "N", "Steps between two writings of OUT");
  app->add_flag("--resume", o->resume,
                "Go on with the run that OUT holds; where there is none, begin");
  app->add_flag("--dry-run", o->dry_run, "Check everything, say what it takes, and stop");
  app->add_flag("--json", o->json, "Print the report as JSON, with the schedule");
  app->footer(R"(
Examples:
  batten wan denoise --model Wan2.1-T2V-1.3B-Diffusers --prompt-embeds prompt.safetensors \
      --negative-embeds negative.safetensors -o latents.safetensors --width 832 --height 480
  batten wan denoise … -o latents.safetensors --resume        after Ctrl-C
  batten wan denoise … -o latents.safetensors --dry-run       memory and FLOPs, before starting

The latents are diffusers': docs/wan.md has the script that decodes them. Ctrl-C ends after the step
and saves it (exit code 130).)");
  return {app,
          [app, o](const Console& console) {
            return WanDenoise(*o, command_line(*app), console).run();
          },
          {}};
}

}  // namespace batten::tools
