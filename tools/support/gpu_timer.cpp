// CUDA events and graphs; the only file of the command that includes CUDA's headers.
#include "support/timer.hpp"

#if BATTEN_WITH_CUDA

#include <cuda_runtime_api.h>

#include <array>

#include "core/cuda_graph.hpp"
#include "support/memory.hpp"

namespace batten::tools {
namespace {

constexpr auto check = impl::check_status;

class GpuTimer final : public Timer {
 public:
  explicit GpuTimer(int index) {
    check(cudaSetDevice(index), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~GpuTimer() override {
    (void)cudaStreamSynchronize(stream_);
    for (const Pair& pair : pairs_) {
      for (const cudaEvent_t event : pair) (void)cudaEventDestroy(event);
    }
    (void)cudaStreamDestroy(stream_);
  }
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  void* stream() const override { return stream_; }

  void start() override {
    if (used_ == pairs_.size()) {
      Pair pair{};
      for (cudaEvent_t& event : pair) check(cudaEventCreate(&event), "cudaEventCreate");
      pairs_.push_back(pair);
    }
    check(cudaEventRecord(pairs_[used_][0], stream_), "cudaEventRecord");
  }
  void stop() override {
    check(cudaEventRecord(pairs_[used_][1], stream_), "cudaEventRecord");
    ++used_;
  }
  std::vector<double> take_ms() override {
    synchronize();
    std::vector<double> samples;
    for (std::size_t i = 0; i < used_; ++i) {
      float ms = 0;
      check(cudaEventElapsedTime(&ms, pairs_[i][0], pairs_[i][1]), "cudaEventElapsedTime");
      samples.push_back(static_cast<double>(ms));
    }
    used_ = 0;
    return samples;
  }
  void synchronize() override {
    check(cudaStreamSynchronize(stream_), "waiting for the measured calls");
  }

  std::function<void()> record(const std::function<void()>& calls) override {
    // std::function must be copyable, hence shared ownership.
    const auto graph = impl::record_graph(stream_, calls);
    check(cudaGraphUpload(graph.get(), stream_), "cudaGraphUpload");
    return [this, graph] { check(cudaGraphLaunch(graph.get(), stream_), "cudaGraphLaunch"); };
  }

 private:
  using Pair = std::array<cudaEvent_t, 2>;

  cudaStream_t stream_ = nullptr;
  std::vector<Pair> pairs_;  // grows to the largest number of samples that were queued at once
  std::size_t used_ = 0;
};

}  // namespace

std::size_t gpu_free_bytes(int index) {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaSetDevice(index), "cudaSetDevice");
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

std::unique_ptr<Timer> make_gpu_timer(int index) { return std::make_unique<GpuTimer>(index); }

std::size_t gpu_cache_bytes(int index) {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, index), "cudaDeviceGetAttribute");
  return static_cast<std::size_t>(bytes);
}

std::string gpu_pci_bus_id(int index) {
  std::array<char, 32> id{};
  check(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), index),
        "cudaDeviceGetPCIBusId");
  return id.data();
}

}  // namespace batten::tools

#endif  // BATTEN_WITH_CUDA
