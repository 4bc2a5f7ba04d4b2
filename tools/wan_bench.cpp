// `batten wan bench`: times a Wan transformer's forward, by kinds of work and backends.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
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
#include "support/table.hpp"
#include "support/wan_model.hpp"
#include "verbs.hpp"
#include "wan/denoise.hpp"

namespace batten::tools {
namespace {

constexpr std::uint64_t kWeightsSeed = 0;
constexpr int kTimedSteps = 3;              // for the split
constexpr int kStandAloneCalls = 10;        // of each attention
constexpr std::int64_t kImageTokens = 257;  // of CLIP, which I2V models read

struct WanBenchOptions {
  std::string preset;
  std::string model;
  std::string size;
  VideoOptions video;
  DeviceOptions device;
  std::int64_t batch = 1;
  std::optional<std::int64_t> layers;
  std::optional<std::int64_t> image_tokens;
  int steps = 50;
  int passes = 2;
  int warmups = 2;
  int repeats = 5;
  bool random_weights = false;
  bool sides_given = false;  // --width or --height
  std::vector<std::string> backends;
  std::string output = "results/wan_bench.json";
};

struct Result {
  std::string backend;
  std::vector<double> samples;  // seconds of a forward
  // Of one forward, and of all its attention calls by themselves; none where Ctrl-C came first.
  std::optional<wan::Ops::Times> split;
  std::optional<double> attention_alone;
  std::map<std::string, Receipt> receipts;
  std::size_t used_bytes = 0;
  std::size_t attention_bytes = 0;
};

void apply_size(const std::string& size, const wan::Config& config, VideoOptions& video) {
  if (size.empty()) return;
  if (size == "480p") {
    video.width = 832;
    video.height = 480;
  } else if (size == "720p") {
    video.width = 1280;
    // Wan2.2's VAE halves once more: its 720p is a little lower.
    video.height = vae_stride(config, video).space == 16 ? 704 : 720;
  } else {
    throw UsageError(fmt::format("--size: '{}' is none of 480p, 720p", size));
  }
}

// The attention calls of a forward by themselves, on contiguous tensors.
class StandAlone {
 public:
  StandAlone(wan::Ops& ops, const wan::Config& config, const wan::Shape& shape, DType dtype,
             const std::string& backend, int threads)
      : ops_(ops),
        config_(config),
        batch_(shape.batch),
        dtype_(dtype),
        attention_({.dtype = dtype,
                    .num_heads = static_cast<int>(config.heads),
                    .head_dim = static_cast<int>(config.head_dim)},
                   ops.device(), {.backend = backend, .num_threads = threads}) {
    const std::int64_t tokens = wan::tokens(config, shape);
    seconds_ = time(tokens, tokens) + time(tokens, shape.text_tokens);
    if (shape.image_tokens > 0) seconds_ += time(tokens, shape.image_tokens);
    seconds_ *= static_cast<double>(config.layers);
  }
  double seconds() const noexcept { return seconds_; }

 private:
  struct Tensor {
    wan::Memory memory;
    TensorView view;
  };
  Tensor tensor(std::int64_t length, std::uint64_t seed) {
    const std::int64_t count = batch_ * length * config_.dim();
    Tensor t{ops_.allocate(static_cast<std::size_t>(count) * size_of(dtype_)), {}};
    ops_.fill_random(t.memory.data, static_cast<std::size_t>(count), dtype_, 0, 1.7F, seed);
    t.view = TensorView(t.memory.data, dtype_, {batch_, length, config_.heads, config_.head_dim},
                        ops_.device());
    return t;
  }
  double time(std::int64_t q_length, std::int64_t kv_length) {
    const Tensor q = tensor(q_length, 1);
    const Tensor k = tensor(kv_length, 2);
    const Tensor v = tensor(kv_length, 3);
    const Tensor out = tensor(q_length, 4);
    const CallOptions call{.stream = ops_.stream()};
    attention_.prepare(q.view, k.view, v.view, out.view, call);
    attention_.forward(q.view, k.view, v.view, out.view, call);
    const int calls = ops_.device().is_cpu() ? 2 : kStandAloneCalls;
    ops_.start_timing();
    ops_.mark(wan::Work::attention);
    for (int i = 0; i < calls; ++i) attention_.forward(q.view, k.view, v.view, out.view, call);
    return ops_.finish_timing().total() / calls;
  }

  wan::Ops& ops_;
  const wan::Config& config_;
  std::int64_t batch_;
  DType dtype_;
  Attention attention_;
  double seconds_ = 0;
};

class WanBench {
 public:
  WanBench(WanBenchOptions options, std::string command, const Console& console)
      : o_(std::move(options)),
        command_(std::move(command)),
        console_(console),
        info_(library_info()) {
    check_usage();
    if (!o_.model.empty()) {
      checkpoint_ = wan::Checkpoint::open(o_.model);
      config_ = checkpoint_->config();
    } else {
      config_ = wan::preset(o_.preset);
    }
    check_against_model();
    if (o_.layers) config_.layers = *o_.layers;
    apply_size(o_.size, config_, o_.video);
    shape_ = latent_shape(config_, o_.video);
    shape_.batch = o_.batch;
    shape_.image_tokens = !config_.takes_image()         ? 0
                          : config_.image_pos_tokens > 0 ? config_.image_pos_tokens
                                                         : o_.image_tokens.value_or(kImageTokens);
    wan::check(config_, shape_);
  }

  int run() {
    started_ = utc_time();
    device_ = open_device(o_.device, o_.backends.front(), info_);
    const MemoryNeed need = memory_need(config_, shape_, device_.dtype, 1);
    check_memory(need, device_);
    // One that is not available must not cost what the others measured.
    for (const std::string& backend : o_.backends) check_backend(backend, config_, device_);
    prepare_output(o_.output);
    rate_ = wan::matrix_rate(*device_.ops, device_.dtype);
    const bool random = !checkpoint_ || o_.random_weights;
    const wan::Weights weights =
        random ? wan::Weights::random(*device_.ops, config_, device_.dtype, kWeightsSeed)
               : wan::Weights::load(*device_.ops, *checkpoint_, device_.dtype);
    fmt::print("{}", headline(need));
    std::fflush(stdout);
    const std::exception_ptr failure = measure_all(weights);
    const bool stopped = interrupted();  // once: it may come at any time
    complete_ = !stopped && failure == nullptr;
    if (!results_.empty()) {  // else an earlier file would be replaced by nothing
      fmt::print("{}", table());
      write_text(o_.output, report(need).dump(1) + "\n");
      fmt::print("wrote {}\n", o_.output);
    }
    if (stopped) {
      console_.error(results_.empty()
                         ? std::string("interrupted before the first result; nothing was written")
                         : fmt::format("interrupted; what was measured up to here is in '{}'",
                                       io::printable_path(o_.output)));
      return kExitInterrupted;
    }
    if (failure != nullptr) std::rethrow_exception(failure);
    return kExitOk;
  }

 private:
  void check_usage() {
    const auto at_least = [](const char* option, std::int64_t value, std::int64_t least) {
      if (value < least)
        throw UsageError(fmt::format("{}: {} is less than {}", option, value, least));
    };
    at_least("--batch", o_.batch, 1);
    at_least("--steps", o_.steps, 1);
    at_least("--warmups", o_.warmups, 1);
    at_least("--repeats", o_.repeats, 1);
    at_least("--layers", o_.layers.value_or(1), 1);
    at_least("--image-tokens", o_.image_tokens.value_or(1), 1);
    if (o_.passes != 1 && o_.passes != 2) {
      throw UsageError(
          fmt::format("--passes: {} is neither 2 (with guidance) nor 1 (without)", o_.passes));
    }
    if (!o_.size.empty() && o_.sides_given) {
      throw UsageError(fmt::format(
          "--size {} states width and height: leave it out, or --width and --height", o_.size));
    }
    if (o_.preset.empty() == o_.model.empty()) throw UsageError("give either --preset or --model");
    const std::vector<std::string>& names = wan::preset_names();
    if (!o_.preset.empty() && std::find(names.begin(), names.end(), o_.preset) == names.end()) {
      throw UsageError(
          fmt::format("--preset: '{}' is none of {}", o_.preset, fmt::join(names, ", ")));
    }
    if (!o_.preset.empty() && !o_.random_weights)
      throw UsageError("--preset needs --random-weights: a preset has no weights of its own");
    if (o_.layers && !o_.random_weights)
      throw UsageError("--layers needs --random-weights: a checkpoint's layers belong together");
    if (o_.backends.empty()) o_.backends = {"auto"};
    for (const std::string& backend : o_.backends) check_backend_name("--backends", backend, info_);
  }

  // Options that this model leaves nothing to do.
  void check_against_model() const {
    if (o_.layers && *o_.layers > config_.layers) {
      throw UsageError(fmt::format("--layers: {} is more than the {} of {}; leave it out for all",
                                   *o_.layers, config_.layers, name()));
    }
    if (!o_.image_tokens) return;
    if (!config_.takes_image()) {
      throw UsageError(
          fmt::format("--image-tokens: {} takes no image embeddings; leave it out", name()));
    }
    if (config_.image_pos_tokens > 0 && config_.image_pos_tokens != *o_.image_tokens) {
      throw UsageError(
          fmt::format("--image-tokens: {} has positions for {}, not for {}; leave it out", name(),
                      config_.image_pos_tokens, *o_.image_tokens));
    }
  }

  std::string name() const { return o_.model.empty() ? o_.preset : checkpoint_->source(); }

  std::string headline(const MemoryNeed& need) const {
    const wan::Flops f = wan::flops(config_, shape_);
    const Json environment = environment_json(info_, device_.device);
    const Json& machine = environment[device_.device.is_cpu() ? "cpu" : "gpu"];
    return fmt::format(
        "{}, {} x {} x {} frames: {} tokens, batch {}, {} on {} ({})\n"
        "weights {}, activations {}; a forward: attention {:.4g} + {:.4g}, linears "
        "{:.4g} TFLOP\nmatrix products: {:.4g} TFLOP/s, {}\n",
        name(), o_.video.width, o_.video.height, o_.video.frames, wan::tokens(config_, shape_),
        shape_.batch, name_of(device_.dtype), device_.device.str(),
        machine.is_string() ? machine.get<std::string>() : "unknown", size_text(need.weights),
        size_text(need.session), f.self_attention / 1e12, f.cross_attention / 1e12, f.linear / 1e12,
        rate_, device_.ops->library());
  }

  // What goes wrong with one backend, and Ctrl-C, must not lose what the others measured.
  std::exception_ptr measure_all(const wan::Weights& weights) {
    Progress progress(o_.backends.size());
    try {
      for (std::size_t i = 0; i < o_.backends.size() && !interrupted(); ++i) {
        progress.update(i, o_.backends[i]);
        Result result = measure(weights, o_.backends[i]);
        if (!result.samples.empty()) results_.push_back(std::move(result));
      }
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  // Stops early when interrupted.
  Result measure(const wan::Weights& weights, const std::string& backend) {
    using Clock = std::chrono::steady_clock;
    Result result{.backend = backend};
    {
      wan::Session session(*device_.ops, weights, shape_,
                           {.backend = backend, .num_threads = o_.device.threads});
      const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
      session.set_text(0,
                       wan::noise(count(shape_.batch * shape_.text_tokens * config_.text_dim), 1));
      if (shape_.image_tokens > 0) {
        session.set_image(
            wan::noise(count(shape_.batch * shape_.image_tokens * config_.image_dim), 2));
      }
      session.set_timesteps(std::vector<float>(count(shape_.batch), 500));
      const std::vector<float> input = wan::noise(session.input().size(), 3);
      std::copy(input.begin(), input.end(), session.input().begin());
      // The second step is the one that is recorded as a graph.
      for (int i = 0; i < std::max(o_.warmups, 2) && !interrupted(); ++i) session.step();
      for (int i = 0; i < o_.repeats && !interrupted(); ++i) {
        const auto start = Clock::now();
        session.step();
        result.samples.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      }
      result.receipts = session.receipts();
      result.attention_bytes = session.attention_bytes();
      const std::size_t free = device_.ops->free_bytes();
      result.used_bytes = device_.free_at_start > free ? device_.free_at_start - free : 0;
      result.split = median_split(session);
    }
    if (interrupted()) return result;
    result.attention_alone =
        StandAlone(*device_.ops, config_, shape_, device_.dtype, backend, o_.device.threads)
            .seconds();
    return result;
  }

  std::optional<wan::Ops::Times> median_split(wan::Session& session) const {
    std::vector<wan::Ops::Times> all;
    const int steps = device_.device.is_cpu() ? 1 : std::min(kTimedSteps, o_.repeats);
    for (int i = 0; i < steps && !interrupted(); ++i) all.push_back(session.timed_step());
    if (all.empty()) return std::nullopt;
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.total() < b.total(); });
    return all[all.size() / 2];
  }

  std::string table() const {
    const auto right = [](const char* title) { return Table::Column{title, Align::right, 0}; };
    Table table({{"backend"},
                 right("s/forward"),
                 right("s/step"),
                 right("s/video"),
                 right("attention"),
                 right("linears"),
                 right("rest"),
                 right("rest %"),
                 right("alone/attention"),
                 right("TFLOP/s"),
                 right("of rate"),
                 right("GiB used")});
    for (const Result& r : results_) {
      const double forward = median(r.samples);
      const double rate = wan::flops(config_, shape_).total() / forward / 1e12;
      std::vector<Table::Cell> row{r.backend, fmt::format("{:.4g}", forward),
                                   fmt::format("{:.4g}", forward * o_.passes),
                                   fmt::format("{:.4g}", forward * o_.passes * o_.steps)};
      for (std::string& cell : split_cells(r)) row.emplace_back(std::move(cell));
      row.emplace_back(fmt::format("{:.4g}", rate));
      row.emplace_back(fmt::format("{:.3f}", rate / rate_));
      row.emplace_back(device_.device.is_cpu() ? "-" : fmt::format("{:.2f}", gib(r.used_bytes)));
      table.add(std::move(row));
    }
    return table.str();
  }

  // Attention, linears, rest, its part, and attention by itself over attention in the model.
  static std::vector<std::string> split_cells(const Result& r) {
    if (!r.split) return std::vector<std::string>(5, "-");
    const wan::Ops::Times& s = *r.split;
    return {fmt::format("{:.4g}", s.attention), fmt::format("{:.4g}", s.linear),
            fmt::format("{:.4g}", s.other), fmt::format("{:.1f}", 100 * s.other / s.total()),
            r.attention_alone ? fmt::format("{:.3f}", *r.attention_alone / s.attention) : "-"};
  }

  Json report(const MemoryNeed& need) const {
    Json j{{"environment", environment_json(info_, device_.device)},
           {"command", command_},
           {"date", started_},
           {"device", device_.device.str()},
           {"model", name()},
           {"random_weights", !checkpoint_ || o_.random_weights},
           {"config", config_json(config_)},
           {"dtype", name_of(device_.dtype)},
           {"width", o_.video.width},
           {"height", o_.video.height},
           {"frames", o_.video.frames},
           {"latent", {shape_.frames, shape_.height, shape_.width}},
           {"tokens", wan::tokens(config_, shape_)},
           {"batch_size", shape_.batch},
           {"steps", o_.steps},
           {"passes", o_.passes},
           {"memory", memory_json(need)},
           {"flops", flops_json(wan::flops(config_, shape_))},
           {"matrix_tflops", rate_},
           {"linear_library", device_.ops->library()},
           {"linears_tuned", o_.device.tune_linears},
           {"complete", complete_},
           {"results", Json::array()}};
    for (const Result& r : results_) j["results"].push_back(result_json(r));
    return j;
  }

  Json result_json(const Result& r) const {
    const double forward = median(r.samples);
    const double rate = wan::flops(config_, shape_).total() / forward / 1e12;
    Json j{{"backend", r.backend},
           {"seconds_per_forward", forward},
           {"seconds_per_step", forward * o_.passes},
           {"seconds_per_video", forward * o_.passes * o_.steps},
           {"tflops", rate},
           {"of_matrix_rate", rate / rate_},
           {"used_bytes", device_.device.is_cpu() ? Json() : Json(r.used_bytes)},
           {"attention_scratch_bytes", r.attention_bytes},
           {"samples_seconds", r.samples}};
    if (r.split) j.update(split_json(r));
    for (const auto& [which, receipt] : r.receipts) j["receipts"][which] = receipt_json(receipt);
    return j;
  }

  Json split_json(const Result& r) const {
    const wan::Flops f = wan::flops(config_, shape_);
    const wan::Ops::Times& s = *r.split;
    Json j{{"split",
            {{"attention", s.attention},
             {"linear", s.linear},
             {"other", s.other},
             {"total", s.total()}}},
           {"other_percent", 100 * s.other / s.total()},
           {"attention_tflops", f.attention() / s.attention / 1e12},
           {"linear_tflops", f.linear / s.linear / 1e12}};
    if (r.attention_alone) {
      j["attention_alone_seconds"] = *r.attention_alone;
      j["attention_alone_ratio"] = *r.attention_alone / s.attention;
    }
    return j;
  }

  WanBenchOptions o_;
  std::string command_;
  const Console& console_;
  std::string started_;
  LibraryInfo info_;
  std::optional<wan::Checkpoint> checkpoint_;
  wan::Config config_;
  wan::Shape shape_;
  WanDevice device_;
  double rate_ = 0;
  std::vector<Result> results_;
  bool complete_ = false;  // every backend measured to its end
};

}  // namespace

Verb add_wan_bench(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand("bench", "Time a Wan transformer's forward");
  auto o = std::make_shared<WanBenchOptions>();
  app->add_option("--preset", o->preset, "t2v-1.3b, t2v-14b, i2v-14b or ti2v-5b")
      ->type_name("NAME");
  app->add_option("--model", o->model, "A checkpoint, instead of a preset")->type_name("PATH");
  app->add_flag("--random-weights", o->random_weights, "Random weights, whatever the model");
  app->add_option("--size", o->size, "480p (832 x 480) or 720p (1280 x 720; ti2v-5b: 704)")
      ->type_name("SIZE");
  add_video_options(*app, o->video);
  const auto number = [&](const char* name, auto& value, const char* help) {
    app->add_option(name, value, help)->capture_default_str()->type_name("N");
  };
  number("--batch", o->batch, "Videos in a forward");
  app->add_option("--image-tokens", o->image_tokens, "Image tokens of I2V models [257]")
      ->type_name("N");
  app->add_option("--layers", o->layers, "Only so many layers [all]")->type_name("N");
  number("--steps", o->steps, "Steps of a video, for the time of one");
  number("--passes", o->passes, "Forwards of a step: 2 with guidance, 1 without");
  number("--warmups", o->warmups, "Forwards before timing");
  number("--repeats", o->repeats, "Forwards that are timed");
  app->add_option("--backends", o->backends, "Backends of batten to compare [auto]")
      ->expected(1, -1)
      ->type_name("NAME...");
  add_device_options(*app, o->device);
  app->add_option("-o,--output", o->output, "JSON file with all samples")
      ->capture_default_str()
      ->type_name("FILE");
  app->footer(R"(
Examples:
  batten wan bench --preset t2v-1.3b --size 480p --random-weights --backends auto cudnn
  batten wan bench --preset t2v-14b --size 720p --random-weights --repeats 3
  batten wan bench --model Wan2.1-T2V-1.3B-Diffusers --size 480p --batch 2

Seconds of a forward (a CUDA graph), of a step and of a video; of one forward, what attention,
linears and the rest take; how long attention takes by itself over what it takes in the model; FLOPs
over time, and what part that is of a large matrix product's. Ctrl-C ends after the forward and
saves what was measured (exit code 130).)");
  return {app,
          [app, o](const Console& console) {
            o->sides_given = app->count("--width") + app->count("--height") > 0;
            return WanBench(*o, command_line(*app), console).run();
          },
          {}};
}

}  // namespace batten::tools
