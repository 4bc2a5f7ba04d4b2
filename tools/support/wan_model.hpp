// What `batten wan`'s verbs have in common: which model, which video, on which device.
#pragma once

#include <batten/batten.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "support/environment.hpp"
#include "wan/checkpoint.hpp"
#include "wan/ops.hpp"
#include "wan/weights.hpp"

namespace CLI {
class App;
}

namespace batten::tools {

// A video in pixels.
struct VideoOptions {
  std::int64_t width = 832;
  std::int64_t height = 480;
  std::int64_t frames = 81;
  std::int64_t vae_stride = 0;  // pixels of a latent; 0: by the model's channels
};

// Adds --width, --height, --frames and --vae-stride.
void add_video_options(CLI::App& app, VideoOptions& options);

// Pixels of a latent along each side, and frames of one but for the first.
struct VaeStride {
  std::int64_t space = 8;
  std::int64_t time = 4;
};
VaeStride vae_stride(const wan::Config& config, const VideoOptions& options);

// The latent's frames, height and width. UsageError for what is no multiple of the VAE's stride and
// the patch, with the nearest that is.
wan::Shape latent_shape(const wan::Config& config, const VideoOptions& options);

struct DeviceOptions {
  std::string device;
  std::string dtype;  // empty: bfloat16 on a GPU, float32 on the CPU
  int threads = 0;
  bool tune_linears = false;
};

// Adds --device, --dtype, --threads and --tune-linears.
void add_device_options(CLI::App& app, DeviceOptions& options);

// The device with its operations, and the dtype to compute in. `backend` may be empty.
struct WanDevice {
  Device device;
  DType dtype = DType::none;
  std::unique_ptr<wan::Ops> ops;
  std::size_t free_at_start = 0;
};
WanDevice open_device(const DeviceOptions& options, const std::string& backend,
                      const LibraryInfo& info);

// Fails before the weights are read if the backend is not available on the device, or does not
// serve the model's heads there. `backend` may be empty.
void check_backend(const std::string& backend, const wan::Config& config, const WanDevice& device);

// Bytes that a run takes on the device.
struct MemoryNeed {
  std::size_t weights = 0;
  std::size_t session = 0;
  std::size_t total() const noexcept { return weights + session; }
};
MemoryNeed memory_need(const wan::Config& config, const wan::Shape& shape, DType dtype, int passes);

// Throws OutOfMemory, with the numbers, if they are not free.
void check_memory(const MemoryNeed& need, const WanDevice& device);

double gib(std::size_t bytes);
// "276 KiB", "3.2 MiB", "2.64 GiB"
std::string size_text(std::size_t bytes);
Json memory_json(const MemoryNeed& need);
Json config_json(const wan::Config& config);
Json flops_json(const wan::Flops& flops);

}  // namespace batten::tools
