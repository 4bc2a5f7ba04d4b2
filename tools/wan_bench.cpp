// `batten wan bench`: times a Wan transformer's forward, by kinds of work and backends.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
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
constexpr int kTimedSteps = 3;        // for the split
constexpr int kStandAloneCalls = 10;  // of each attention

struct WanBenchOptions {
  std::string preset;
  std::string model;
  std::string size;
  VideoOptions video;
  DeviceOptions device;
  std::int64_t batch = 1;
  std::int64_t layers = 0;
  std::int64_t image_tokens = 257;
  int steps = 50;
  int passes = 2;
  int warmups = 2;
  int repeats = 5;
  bool random_weights = false;
  std::vector<std::string> backends;
  std::string output = "results/wan_bench.json";
};

struct Result {
  std::string backend;
  std::vector<double> samples;  // seconds of a forward
  wan::Ops::Times split;        // of one forward
  double attention_alone = 0;   // all of a forward's attention calls, by themselves
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
  WanBench(WanBenchOptions options, std::string command)
      : o_(std::move(options)), command_(std::move(command)), info_(library_info()) {
    check_usage();
    if (!o_.model.empty()) {
      checkpoint_ = wan::Checkpoint::open(o_.model);
      config_ = checkpoint_->config();
    } else {
      config_ = wan::preset(o_.preset);
    }
    if (o_.layers > 0) config_.layers = std::min(config_.layers, o_.layers);
    apply_size(o_.size, config_, o_.video);
    shape_ = latent_shape(config_, o_.video);
    shape_.batch = o_.batch;
    shape_.image_tokens = !config_.takes_image()         ? 0
                          : config_.image_pos_tokens > 0 ? config_.image_pos_tokens
                                                         : o_.image_tokens;
    wan::check(config_, shape_);
  }

  int run() {
    prepare_output(o_.output);
    started_ = utc_time();
    device_ = open_device(o_.device, o_.backends.front(), info_);
    const MemoryNeed need = memory_need(config_, shape_, device_.dtype, 1);
    check_memory(need, device_);
    // One that is not available must not cost what the others measured.
    for (const std::string& backend : o_.backends) {
      Attention({.dtype = device_.dtype,
                 .num_heads = static_cast<int>(config_.heads),
                 .head_dim = static_cast<int>(config_.head_dim)},
                device_.device, {.backend = backend});
    }
    rate_ = wan::matrix_rate(*device_.ops, device_.dtype);
    const bool random = !checkpoint_ || o_.random_weights;
    const wan::Weights weights =
        random ? wan::Weights::random(*device_.ops, config_, device_.dtype, kWeightsSeed)
               : wan::Weights::load(*device_.ops, *checkpoint_, device_.dtype);
    fmt::print("{}", headline(need));
    std::fflush(stdout);
    Progress progress(o_.backends.size());
    for (std::size_t i = 0; i < o_.backends.size() && !interrupted(); ++i) {
      progress.update(i, o_.backends[i]);
      results_.push_back(measure(weights, o_.backends[i]));
    }
    progress.clear();
    throw_if_interrupted();
    fmt::print("{}", table());
    write_text(o_.output, report(need).dump(1) + "\n");
    fmt::print("wrote {}\n", o_.output);
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
    at_least("--passes", o_.passes, 1);
    at_least("--warmups", o_.warmups, 1);
    at_least("--repeats", o_.repeats, 1);
    at_least("--layers", o_.layers, 0);
    at_least("--image-tokens", o_.image_tokens, 1);
    if (o_.preset.empty() == o_.model.empty()) throw UsageError("give either --preset or --model");
    const std::vector<std::string>& names = wan::preset_names();
    if (!o_.preset.empty() && std::find(names.begin(), names.end(), o_.preset) == names.end()) {
      throw UsageError(
          fmt::format("--preset: '{}' is none of {}", o_.preset, fmt::join(names, ", ")));
    }
    if (!o_.preset.empty() && !o_.random_weights)
      throw UsageError("--preset needs --random-weights: a preset has no weights of its own");
    if (o_.layers > 0 && !o_.random_weights)
      throw UsageError("--layers needs --random-weights: a checkpoint's layers belong together");
    if (o_.backends.empty()) o_.backends = {"auto"};
    for (const std::string& backend : o_.backends) check_backend_name("--backends", backend, info_);
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
      throw_if_interrupted();
      result.split = median_split(session);
      result.receipts = session.receipts();
      result.attention_bytes = session.attention_bytes();
      const std::size_t free = device_.ops->free_bytes();
      result.used_bytes = device_.free_at_start > free ? device_.free_at_start - free : 0;
    }
    result.attention_alone =
        StandAlone(*device_.ops, config_, shape_, device_.dtype, backend, o_.device.threads)
            .seconds();
    return result;
  }

  wan::Ops::Times median_split(wan::Session& session) const {
    std::vector<wan::Ops::Times> all;
    const int steps = device_.device.is_cpu() ? 1 : std::min(kTimedSteps, o_.repeats);
    for (int i = 0; i < steps; ++i) {
      throw_if_interrupted();
      all.push_back(session.timed_step());
    }
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
      table.add({r.backend, fmt::format("{:.4g}", forward),
                 fmt::format("{:.4g}", forward * o_.passes),
                 fmt::format("{:.4g}", forward * o_.passes * o_.steps),
                 fmt::format("{:.4g}", r.split.attention), fmt::format("{:.4g}", r.split.linear),
                 fmt::format("{:.4g}", r.split.other),
                 fmt::format("{:.1f}", 100 * r.split.other / r.split.total()),
                 fmt::format("{:.3f}", r.attention_alone / r.split.attention),
                 fmt::format("{:.4g}", rate), fmt::format("{:.3f}", rate / rate_),
                 fmt::format("{:.2f}", gib(r.used_bytes))});
    }
    return table.str();
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
           {"results", Json::array()}};
    for (const Result& r : results_) j["results"].push_back(result_json(r));
    return j;
  }

  Json result_json(const Result& r) const {
    const double forward = median(r.samples);
    const double rate = wan::flops(config_, shape_).total() / forward / 1e12;
    const wan::Flops f = wan::flops(config_, shape_);
    Json j{{"backend", r.backend},
           {"seconds_per_forward", forward},
           {"seconds_per_step", forward * o_.passes},
           {"seconds_per_video", forward * o_.passes * o_.steps},
           {"split",
            {{"attention", r.split.attention},
             {"linear", r.split.linear},
             {"other", r.split.other},
             {"total", r.split.total()}}},
           {"other_percent", 100 * r.split.other / r.split.total()},
           {"attention_tflops", f.attention() / r.split.attention / 1e12},
           {"linear_tflops", f.linear / r.split.linear / 1e12},
           {"attention_alone_seconds", r.attention_alone},
           {"attention_alone_ratio", r.attention_alone / r.split.attention},
           {"tflops", rate},
           {"of_matrix_rate", rate / rate_},
           {"used_bytes", r.used_bytes},
           {"attention_scratch_bytes", r.attention_bytes},
           {"samples_seconds", r.samples}};
    for (const auto& [which, receipt] : r.receipts) j["receipts"][which] = receipt_json(receipt);
    return j;
  }

  WanBenchOptions o_;
  std::string command_;
  std::string started_;
  LibraryInfo info_;
  std::optional<wan::Checkpoint> checkpoint_;
  wan::Config config_;
  wan::Shape shape_;
  WanDevice device_;
  double rate_ = 0;
  std::vector<Result> results_;
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
  number("--image-tokens", o->image_tokens, "Image tokens of I2V models");
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
over time, and what part that is of a large matrix product's.)");
  return {app, [app, o](const Console&) { return WanBench(*o, command_line(*app)).run(); }, {}};
}

}  // namespace batten::tools
