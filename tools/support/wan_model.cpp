#include "support/wan_model.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "core/error.hpp"
#include "support/exit_code.hpp"
#include "support/options.hpp"
#include "wan/session.hpp"

namespace batten::tools {
namespace {

// What the CUDA context, its modules and the libraries take besides.
constexpr std::size_t kReserve = std::size_t{512} << 20;

std::int64_t nearest_multiple(std::int64_t value, std::int64_t of) {
  return std::max(of, (value + of / 2) / of * of);
}

void check_side(const char* option, std::int64_t value, std::int64_t stride, std::int64_t patch) {
  const std::int64_t multiple = stride * patch;
  if (value > 0 && value % multiple == 0) return;
  throw UsageError(fmt::format(
      "{}: {} is no multiple of {} ({} pixels a latent, patches of {}); the nearest is {}", option,
      value, multiple, stride, patch, nearest_multiple(value, multiple)));
}

}  // namespace

void add_video_options(CLI::App& app, VideoOptions& o) {
  app.add_option("--width", o.width, "Pixels, a multiple of 16 (Wan2.2 5B: 32)")
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--height", o.height, "Likewise")->capture_default_str()->type_name("N");
  app.add_option("--frames", o.frames, "Frames of the video, 4n + 1")
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--vae-stride", o.vae_stride,
                 "Pixels of a latent [16 for models with 48 channels, else 8]")
      ->type_name("N");
}

VaeStride vae_stride(const wan::Config& config, const VideoOptions& options) {
  constexpr std::int64_t kChannelsOfWan22 = 48;
  if (options.vae_stride < 0 || options.vae_stride > 64)
    throw UsageError(fmt::format("--vae-stride: {} is none of 1 to 64", options.vae_stride));
  if (options.vae_stride > 0) return {.space = options.vae_stride};
  return {.space = config.out_channels == kChannelsOfWan22 ? 16 : 8};
}

wan::Shape latent_shape(const wan::Config& config, const VideoOptions& o) {
  const VaeStride stride = vae_stride(config, o);
  check_side("--width", o.width, stride.space, config.patch[2]);
  check_side("--height", o.height, stride.space, config.patch[1]);
  const std::int64_t latents = (o.frames - 1) / stride.time + 1;
  if (o.frames < 1 || (o.frames - 1) % stride.time != 0 || latents % config.patch[0] != 0) {
    throw UsageError(fmt::format(
        "--frames: {} is not {}n + 1; the nearest is {}", o.frames, stride.time,
        std::max<std::int64_t>(o.frames - 1 + stride.time / 2, 0) / stride.time * stride.time + 1));
  }
  wan::Shape shape;
  shape.frames = latents;
  shape.height = o.height / stride.space;
  shape.width = o.width / stride.space;
  return shape;
}

void add_device_options(CLI::App& app, DeviceOptions& o) {
  app.add_option("--device", o.device, kDeviceHelp)->type_name("DEVICE");
  app.add_option("--dtype", o.dtype,
                 "bfloat16, float16 or float32 (the CPU; on a GPU with --backend reference) "
                 "[bfloat16 on a GPU, float32 on the CPU]")
      ->type_name("TYPE");
  add_threads_option(app, o.threads, "CPU threads [all]");
  app.add_flag("--tune-linears", o.tune_linears,
               "Measure the kernels that cuBLASLt proposes for each product and take the fastest; "
               "another run may take another one, and give other bits");
}

WanDevice open_device(const DeviceOptions& o, const std::string& backend, const LibraryInfo& info) {
  // Without --device: a GPU, where there is one that the backend runs on.
  const DType asked = o.dtype.empty() ? DType::none : parse_dtype(o.dtype);
  WanDevice d;
  d.device = choose_device(o.device, backend, DType::bf16, info);
  d.dtype = asked != DType::none ? asked : d.device.is_cpu() ? DType::f32 : DType::bf16;
  if (d.device.is_cpu() && d.dtype != DType::f32) {
    fail(ErrorCode::Unsupported,
         "the CPU computes the model in float32, not in {}; leave --dtype out", name_of(d.dtype));
  }
  if (d.device.is_cpu() && o.tune_linears) {
    throw UsageError(
        "--tune-linears chooses among cuBLASLt's kernels, which the CPU does not run; leave it "
        "out, or name a GPU with --device");
  }
  d.ops = d.device.is_cpu() ? wan::make_cpu_ops(o.threads)
                            : wan::make_cuda_ops(d.device.index, o.tune_linears);
  d.free_at_start = d.ops->free_bytes();
  return d;
}

void check_backend(const std::string& backend, const wan::Config& config, const WanDevice& device) {
  Attention({.dtype = device.dtype,
             .num_heads = static_cast<int>(config.heads),
             .head_dim = static_cast<int>(config.head_dim)},
            device.device, {.backend = backend});
}

MemoryNeed memory_need(const wan::Config& config, const wan::Shape& shape, DType dtype,
                       int passes) {
  return {.weights = wan::make_layout(config, dtype).bytes,
          .session = wan::session_bytes(config, shape, dtype, passes)};
}

void check_memory(const MemoryNeed& need, const WanDevice& device) {
  const std::size_t free = device.ops->free_bytes();
  const std::size_t wanted = need.total() + (device.device.is_cpu() ? 0 : kReserve);
  if (wanted <= free) return;
  const bool weights_fit = need.weights <= free;
  fail(ErrorCode::OutOfMemory,
       "{:.2f} GiB are needed on {} (weights {:.2f}, activations {:.2f}), and {:.2f} GiB are free; "
       "{}",
       gib(wanted), device.device.str(), gib(need.weights), gib(need.session), gib(free),
       weights_fit ? "take fewer --frames, a smaller video, or a smaller batch"
                   : "take a smaller model, or a --device with more memory");
}

double gib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

std::string size_text(std::size_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (bytes < (1U << 20)) return fmt::format("{:.0f} KiB", size / (1 << 10));
  if (bytes < (1U << 30)) return fmt::format("{:.1f} MiB", size / (1 << 20));
  return fmt::format("{:.2f} GiB", gib(bytes));
}

Json memory_json(const MemoryNeed& need) {
  return {{"weights_bytes", need.weights}, {"session_bytes", need.session}};
}

Json config_json(const wan::Config& c) {
  return {
      {"layers", c.layers},           {"heads", c.heads},
      {"head_dim", c.head_dim},       {"ffn_dim", c.ffn_dim},
      {"in_channels", c.in_channels}, {"out_channels", c.out_channels},
      {"text_dim", c.text_dim},       {"image_dim", c.image_dim},
      {"patch_size", c.patch},        {"parameters", wan::make_layout(c, DType::f32).parameters()}};
}

Json flops_json(const wan::Flops& f) {
  return {{"self_attention", f.self_attention},
          {"cross_attention", f.cross_attention},
          {"linear", f.linear},
          {"total", f.total()}};
}

}  // namespace batten::tools
