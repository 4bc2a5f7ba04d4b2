// The transformer's operations on a GPU: one stream, cuBLASLt, own kernels, CUDA graphs.
#include <cuda_runtime_api.h>

#include <array>
#include <utility>
#include <vector>

#include "core/cuda_graph.hpp"
#include "core/error.hpp"
#include "wan/cuda/cublaslt.hpp"
#include "wan/cuda/kernels.hpp"
#include "wan/ops.hpp"

namespace batten::wan {
namespace {

using cuda::check;

// Weights travel in pieces of this size, one being filled while the other is on its way.
constexpr std::size_t kPieceBytes = std::size_t{32} << 20;

class CudaOps final : public Ops {
 public:
  CudaOps(int index, bool tune) : index_(index), blas_(tune) {
    check(cudaSetDevice(index), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    workspace_ = allocate(cuda::CublasLt::kWorkspaceBytes);
    blas_.set_workspace(workspace_.data);
  }
  ~CudaOps() override {
    (void)cudaStreamSynchronize(stream_);
    for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
    (void)cudaStreamDestroy(stream_);
  }
  CudaOps(const CudaOps&) = delete;
  CudaOps& operator=(const CudaOps&) = delete;

  Device device() const override { return Device::cuda(index_); }
  void* stream() const override { return stream_; }
  std::size_t free_bytes() const override { return memory_info().first; }
  std::size_t total_bytes() const override { return memory_info().second; }
  std::string library() const override { return blas_.text(); }

  Memory allocate(std::size_t bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      fail(ErrorCode::OutOfMemory, "{:.2f} GiB cannot be allocated on cuda:{}, {:.2f} GiB are free",
           static_cast<double>(bytes) / (1 << 30), index_,
           static_cast<double>(free_bytes()) / (1 << 30));
    }
    check(error, "cudaMalloc");
    return {std::shared_ptr<void>(data, [](void* p) { (void)cudaFree(p); }),
            static_cast<std::byte*>(data), bytes};
  }
  Memory allocate_host(std::size_t bytes) override {
    void* data = nullptr;
    check(cudaMallocHost(&data, std::max<std::size_t>(bytes, 1)), "cudaMallocHost");
    return {std::shared_ptr<void>(data, [](void* p) { (void)cudaFreeHost(p); }),
            static_cast<std::byte*>(data), bytes};
  }

  void upload(void* target, std::size_t bytes, const Fill& fill) override {
    for (Piece& piece : pieces_) {
      if (piece.memory.data != nullptr) continue;
      piece.memory = allocate_host(kPieceBytes);
      check(cudaEventCreateWithFlags(&piece.sent, cudaEventDisableTiming), "cudaEventCreate");
      events_.push_back(piece.sent);
    }
    for (std::size_t offset = 0, i = 0; offset < bytes; offset += kPieceBytes, ++i) {
      Piece& piece = pieces_[i % pieces_.size()];
      check(cudaEventSynchronize(piece.sent), "waiting for a copy");
      const std::size_t size = std::min(kPieceBytes, bytes - offset);
      fill({piece.memory.data, size}, offset);
      check(cudaMemcpyAsync(static_cast<std::byte*>(target) + offset, piece.memory.data, size,
                            cudaMemcpyHostToDevice, stream_),
            "copying to the GPU");
      check(cudaEventRecord(piece.sent, stream_), "cudaEventRecord");
    }
    synchronize();
  }
  void copy_in(void* target, const void* host, std::size_t bytes) override {
    check(cudaMemcpyAsync(target, host, bytes, cudaMemcpyHostToDevice, stream_),
          "copying to the GPU");
  }
  void copy_out(void* host, const void* source, std::size_t bytes) override {
    check(cudaMemcpyAsync(host, source, bytes, cudaMemcpyDeviceToHost, stream_),
          "copying from the GPU");
  }
  void synchronize() override { check(cudaStreamSynchronize(stream_), "waiting for the GPU"); }

  void fill_random(void* target, std::size_t count, DType dtype, float mean, float spread,
                   std::uint64_t seed) override {
    cuda::fill_random(target, count, dtype, mean, spread, seed, stream_);
  }

  void prepare(const LinearCall& call) override { blas_.prepare(call, stream_); }
  void linear(const LinearCall& call) override {
    const Activation left = blas_.run(call, stream_);
    if (left == Activation::none) return;
    activate(call.out, call.dtype, call.out, call.dtype,
             static_cast<std::size_t>(call.rows * call.n_out), left);
  }
  void norm(const NormCall& call) override { cuda::norm(call, stream_); }
  void rms(const RmsCall& call) override { cuda::rms(call, stream_); }
  void add(void* a, const void* b, std::size_t count, DType dtype) override {
    cuda::add(a, b, count, dtype, stream_);
  }
  void activate(const void* x, DType x_dtype, void* out, DType out_dtype, std::size_t count,
                Activation activation) override {
    cuda::activate(x, x_dtype, out, out_dtype, count, activation, stream_);
  }
  void patchify(const PatchCall& call) override { cuda::patchify(call, stream_); }
  void unpatchify(const PatchCall& call) override { cuda::unpatchify(call, stream_); }

  std::function<void()> record(std::function<void()> work) override {
    // std::function must be copyable, hence shared ownership.
    const auto graph = impl::record_graph(stream_, work);
    const auto replay = [this, graph] {
      check(cudaGraphLaunch(graph.get(), stream_), "cudaGraphLaunch");
    };
    replay();
    return replay;
  }

  void start_timing() override {
    marks_.clear();
    timing_ = true;
    put_mark(Work::other);
  }
  void mark(Work work) override {
    if (timing_ && work != marks_.back()) put_mark(work);
  }
  Times finish_timing() override {
    put_mark(Work::other);
    timing_ = false;
    synchronize();
    Times times;
    for (std::size_t i = 0; i + 1 < marks_.size(); ++i) {
      float ms = 0;
      check(cudaEventElapsedTime(&ms, timers_[i], timers_[i + 1]), "cudaEventElapsedTime");
      const double seconds = static_cast<double>(ms) / 1e3;
      (marks_[i] == Work::attention ? times.attention
       : marks_[i] == Work::linear  ? times.linear
                                    : times.other) += seconds;
    }
    return times;
  }

 private:
  struct Piece {
    Memory memory;
    cudaEvent_t sent = nullptr;
  };

  std::pair<std::size_t, std::size_t> memory_info() const {
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return {free, total};
  }

  void put_mark(Work work) {
    if (marks_.size() == timers_.size()) {
      cudaEvent_t event = nullptr;
      check(cudaEventCreate(&event), "cudaEventCreate");
      timers_.push_back(event);
      events_.push_back(event);
    }
    check(cudaEventRecord(timers_[marks_.size()], stream_), "cudaEventRecord");
    marks_.push_back(work);
  }

  int index_;
  cuda::CublasLt blas_;
  cudaStream_t stream_ = nullptr;
  Memory workspace_;
  std::array<Piece, 2> pieces_;
  std::vector<cudaEvent_t> events_;  // all, for the end
  std::vector<cudaEvent_t> timers_;
  std::vector<Work> marks_;
  bool timing_ = false;
};

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(int index, bool tune) {
  return std::make_unique<CudaOps>(index, tune);
}

}  // namespace batten::wan
