// What a device does for the transformer: memory, and the operations between attention calls. The
// model's control flow (session.cpp) is the same on every device. All memory is the device's unless
// it says "host"; rows are tokens, and tensors are contiguous unless a stride is given.
#pragma once

#include <batten/types.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace batten::wan {

enum class Activation : std::uint8_t { none, gelu_tanh, gelu_erf, silu };

// out [rows, n_out] = activation(x [rows, n_in] W' + b). All of one dtype.
struct LinearCall {
  const void* x = nullptr;
  const void* weight = nullptr;  // [n_out, n_in]
  const void* bias = nullptr;    // [n_out]
  void* out = nullptr;
  std::int64_t rows = 0;
  std::int64_t n_in = 0;
  std::int64_t n_out = 0;
  DType dtype = DType::none;
  Activation activation = Activation::none;
};

// A vector of d values for each row: table[c] + rows[index[row] * stride + c].
struct Modulation {
  const float* table = nullptr;  // null: absent
  const void* rows = nullptr;    // the call's dtype; null: the table alone
  std::int64_t stride = 0;
};

// x += y * gate (where y is given), then out = LayerNorm(x) * (unit + scale) + shift, in float32.
// `out` may be y.
struct NormCall {
  void* x = nullptr;  // [rows, d]
  const void* y = nullptr;
  void* out = nullptr;
  std::int64_t rows = 0;
  std::int64_t d = 0;
  DType dtype = DType::none;
  double eps = 0;
  Modulation gate = {};   // absent: 1
  Modulation scale = {};  // an affine norm has its weight here, and unit = 0
  Modulation shift = {};
  float unit = 1;
  const std::int32_t* index = nullptr;  // [rows]; null where no modulation has rows
};

// In place: v = v / sqrt(mean(v^2) + eps) * weight over all heads, then the rotation of adjacent
// pairs of each head by the row's angles. `q` and `k` lie in wider rows.
struct RmsCall {
  void* q = nullptr;
  void* k = nullptr;  // null: q alone
  const float* weight_q = nullptr;
  const float* weight_k = nullptr;
  std::int64_t rows = 0;
  std::int64_t d = 0;
  std::int64_t stride = 0;  // elements from row to row, of both
  std::int64_t head_dim = 0;
  DType dtype = DType::none;
  double eps = 0;
  const float* rope = nullptr;  // [tokens, head_dim / 2, 2]: cos, sin; null: no rotation
  std::int64_t tokens = 0;      // row r is token r % tokens
};

// Latents [B, C, F, H, W] float32 <-> rows of patches. In: element ((c pt + t) ph + h) pw + w. Out:
// element ((t ph + h) pw + w) C + c.
struct PatchCall {
  float* latents = nullptr;
  void* rows = nullptr;
  DType dtype = DType::none;  // of the rows
  std::int64_t batch = 0, channels = 0, frames = 0, height = 0, width = 0;
  std::int64_t pt = 0, ph = 0, pw = 0;
};

// Owned device memory.
struct Memory {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// Times of the kinds of work, for reports.
enum class Work : std::uint8_t { attention, linear, other };

class Ops {
 public:
  virtual ~Ops() = default;

  virtual Device device() const = 0;
  // The stream that everything is queued on; null on the CPU.
  virtual void* stream() const = 0;
  // Bytes that can be allocated now, and the device's all.
  virtual std::size_t free_bytes() const = 0;
  virtual std::size_t total_bytes() const = 0;
  // The library behind linear(): "cuBLASLt 13.1.0 (/usr/lib/...)".
  virtual std::string library() const = 0;

  // 256-byte aligned. Throws OutOfMemory.
  virtual Memory allocate(std::size_t bytes) = 0;
  // Host memory that copies quickly to and from the device.
  virtual Memory allocate_host(std::size_t bytes) = 0;
  // Bytes [0, bytes) of `target`, made piece by piece by `fill(piece, offset)`; offsets are
  // multiples of 64. Has ended when the call returns.
  using Fill = std::function<void(std::span<std::byte> piece, std::size_t offset)>;
  virtual void upload(void* target, std::size_t bytes, const Fill& fill) = 0;
  // Queued; the host's side must stay as it is until synchronize().
  virtual void copy_in(void* target, const void* host, std::size_t bytes) = 0;
  virtual void copy_out(void* host, const void* source, std::size_t bytes) = 0;
  virtual void synchronize() = 0;

  // Values uniform in (mean - spread, mean + spread), by `seed` and position alone.
  virtual void fill_random(void* target, std::size_t count, DType dtype, float mean, float spread,
                           std::uint64_t seed) = 0;

  // Chooses the kernel of such products now, so that run() may be recorded.
  virtual void prepare(const LinearCall& call) = 0;
  virtual void linear(const LinearCall& call) = 0;
  virtual void norm(const NormCall& call) = 0;
  virtual void rms(const RmsCall& call) = 0;
  // a += b, `count` elements.
  virtual void add(void* a, const void* b, std::size_t count, DType dtype) = 0;
  // out = activation(x), element by element; the dtypes may differ.
  virtual void activate(const void* x, DType x_dtype, void* out, DType out_dtype, std::size_t count,
                        Activation activation) = 0;
  virtual void patchify(const PatchCall& call) = 0;
  virtual void unpatchify(const PatchCall& call) = 0;

  // What `work` queues, as something that can be queued again at once: a CUDA graph, or `work`
  // itself on the CPU.
  virtual std::function<void()> record(std::function<void()> work) = 0;

  // Between these two, time is taken by kind of work; mark() says of which kind the work is that
  // follows. finish_timing() waits, and gives seconds.
  struct Times {
    double attention = 0;
    double linear = 0;
    double other = 0;
    double total() const noexcept { return attention + linear + other; }
  };
  virtual void start_timing() = 0;
  virtual void mark(Work work) = 0;
  virtual Times finish_timing() = 0;
};

// float32, by OpenBLAS, which is loaded at run time. `threads` 0: all. Throws Unavailable.
std::unique_ptr<Ops> make_cpu_ops(int threads);

// By cuBLASLt, which is loaded at run time, and own kernels. With `tune` each product's kernel is
// the fastest of those that cuBLASLt proposes, measured once. Throws Unavailable, also in a build
// without CUDA.
std::unique_ptr<Ops> make_cuda_ops(int index, bool tune);

// TFLOP/s of a large product of `dtype` on the device: what linears are measured by.
double matrix_rate(Ops& ops, DType dtype);

}  // namespace batten::wan
