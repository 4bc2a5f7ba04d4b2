#include "backends/cudnn/cudnn.hpp"

#include <fmt/format.h>

#include "backends/cudnn/cost.hpp"
#include "backends/cudnn/graph.hpp"
#include "backends/cudnn/handle.hpp"
#include "backends/cudnn/kernels.hpp"
#include "backends/cudnn/library.hpp"
#include "backends/cudnn/plan.hpp"
#include "backends/cudnn/plan_file.hpp"
#include "backends/cudnn/rules.hpp"
#include "core/error.hpp"
#include "core/log.hpp"

namespace batten::impl {
namespace {

using namespace cudnn;  // NOLINT(google-build-using-namespace): this folder's own

constexpr const char* kNeedsCuda = "cuDNN runs on CUDA devices only";

class CudnnBackend final : public Backend {
 public:
  std::string_view name() const override { return "cudnn"; }

  std::vector<std::string> forms() const override { return cudnn::forms(); }

  Availability availability(Device device) const override {
    if (auto absent = without_gpu(device, "cuDNN's kernels")) return *absent;
    const DeviceRuntime& runtime = device_runtime();
    const DeviceProperties& properties = runtime.properties(device.index);
    if (properties.arch() < kOldestArch) {
      return {false,
              fmt::format("{} is sm{}, cuDNN's fused attention needs sm{} or newer",
                          properties.name, properties.arch(), kOldestArch),
              "use the cpu backend or a newer GPU",
              {}};
    }
    const Library found = library();
    if (!found.usable()) return {false, found.reason, found.remedy, {}};
    const int needed = found.cuda_version / 1000;
    const int driver = runtime.driver_version();
    if (driver != 0 && driver / 1000 < needed) {
      return {false,
              fmt::format("{} is built for CUDA {}, the driver stops at CUDA {}.{}", found.text(),
                          needed, driver / 1000, driver % 1000 / 10),
              fmt::format("install a driver for CUDA {}, or the wheel nvidia-cudnn-cu{}", needed,
                          driver / 1000),
              {}};
    }
    return {true, {}, {}, found.text()};
  }

  std::optional<std::string> why_not(const Problem& problem, Device device) const override {
    if (device.is_cpu()) return kNeedsCuda;
    return cudnn::why_not(problem, arch_of(device), library().version);
  }

  std::optional<std::string> why_not(const Problem& problem, const Shape& shape, Device device,
                                     const BackendOptions& options) const override {
    if (device.is_cpu()) return kNeedsCuda;
    return cudnn::why_not(problem, shape, options.form, arch_of(device), library().version);
  }

  Shape plan_key(const Problem& problem, const Shape& shape,
                 const BackendOptions& options) const override {
    return cudnn::plan_key(problem, shape, options.form);
  }

  std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& problem,
                                          const Shape& shape,
                                          const BackendOptions& options) const override {
    return cudnn::predict(card, problem, shape, options);
  }

  std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                        const Shape& shape,
                                        const BackendOptions& options) const override {
    return cudnn::why_not_on(card, problem, shape, options);
  }

  std::shared_ptr<const Plan> plan(const Problem& problem, const Shape& shape, Device device,
                                   const BackendOptions& options) const override {
    const Library found = library();
    if (!found.usable()) fail(ErrorCode::Unavailable, "{}; {}", found.reason, found.remedy);
    load_kernels();
    if (is_trivial(shape)) return make_trivial_plan(problem, found.text());
    const Form form = form_of(problem, shape, options.form);
    return make_graph_plan(problem, shape, form, device.index,
                           graph(graph_key(problem, shape, form), device, found), found.text());
  }

 private:
  static int arch_of(Device device) { return device_runtime().properties(device.index).arch(); }

  // From its plan file, or built and kept in one.
  static std::unique_ptr<const Graph> graph(const GraphKey& key, Device device,
                                            const Library& found) {
    const DeviceProperties& properties = device_runtime().properties(device.index);
    void* const handle = thread_handle(device.index);
    const BuildScope scope(handle);

    const auto folder = plan_folder();
    const std::string file_key = plan_file_key({.device = properties.name,
                                                .arch = properties.arch(),
                                                .multiprocessors = properties.multiprocessors,
                                                .cudnn_version = found.version,
                                                .compiled_version = compiled_version(),
                                                .cuda_version = found.cuda_version,
                                                .frontend_version = frontend_version()},
                                               key.text());
    if (folder) {
      if (const auto bytes = load_plan(*folder, file_key)) {
        try {
          return restore_graph(key, handle, *bytes);
        } catch (const Error& e) {
          log(BATTEN_LOG_DEBUG, "plan file {} is left alone: {}",
              plan_path(*folder, file_key).string(), e.what());
        }
      }
    }
    auto built = build_graph(key, handle, properties.arch());
    // The frontend loads a restored plan's kernels with 1 MiB of scratch.
    constexpr std::size_t kMostScratch = 1 << 20;
    if (folder && built->workspace_size() <= kMostScratch) {
      store_plan(*folder, file_key, built->serialize());
    }
    return built;
  }
};

}  // namespace

std::unique_ptr<Backend> make_cudnn() { return std::make_unique<CudnnBackend>(); }

}  // namespace batten::impl
