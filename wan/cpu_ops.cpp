// The transformer's operations on the CPU: float32, products by OpenBLAS.
#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numbers>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "wan/layout.hpp"
#include "wan/ops.hpp"
#include "wan/random.hpp"
#include "wan/shared_library.hpp"

namespace batten::wan {
namespace {

// Below this many elements, starting threads takes longer than the work.
constexpr std::int64_t kElementsOfThread = 1 << 18;
// Likewise, multiply-adds of a product: OpenBLAS's threads wait for each other by spinning, which
// is slow where other programs want the processors.
constexpr std::int64_t kProductOfThread = 1 << 23;

const LibrarySearch& openblas_search() {
  static const LibrarySearch search{
      .what = "OpenBLAS",
      .names = {"libopenblas.so.0", "libopenblas.so"},
      .variable = "BATTEN_OPENBLAS",
      .folders = {},
      .remedy = "install it (Debian: libopenblas0), or set BATTEN_OPENBLAS to its file"};
  return search;
}

// A processor that OpenBLAS does not know (0.3.21 is of 2022) gets kernels for SSE3. Its kernels
// are for instruction sets rather than processors: name the set, unless the user has.
const LibrarySearch& search_with_kernels() {
#if defined(__x86_64__)
  const char* kernels = __builtin_cpu_supports("avx512dq") ? "SKYLAKEX"
                        : __builtin_cpu_supports("avx2")   ? "HASWELL"
                                                           : nullptr;
  if (kernels != nullptr) ::setenv("OPENBLAS_CORETYPE", kernels, 0);
#endif
  return openblas_search();
}

// The values of cblas.h, which is not needed to build.
enum : int { kRowMajor = 101, kNoTranspose = 111, kTranspose = 112 };

class OpenBlas {
 public:
  OpenBlas()
      : library_(search_with_kernels()),
        sgemm_(reinterpret_cast<Sgemm>(library_.symbol("cblas_sgemm"))),
        set_threads_(reinterpret_cast<SetThreads>(library_.find("openblas_set_num_threads"))) {}

  // Products from now on.
  void set_threads(int threads) {
    if (set_threads_ == nullptr || threads == threads_) return;
    threads_ = threads;
    set_threads_(threads);
  }
  // out [m, n] = x [m, k] w [n, k]' + out.
  void product(int m, int n, int k, const float* x, const float* w, float* out) const {
    sgemm_(kRowMajor, kNoTranspose, kTranspose, m, n, k, 1.0F, x, k, w, k, 1.0F, out, n);
  }
  std::string text() const {
    const auto config = reinterpret_cast<const char* (*)()>(library_.find("openblas_get_config"));
    return fmt::format("{} ({})", config != nullptr ? config() : "OpenBLAS", library_.path());
  }

 private:
  using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                         float, float*, int);
  using SetThreads = void (*)(int);

  SharedLibrary library_;
  Sgemm sgemm_;
  SetThreads set_threads_;
  int threads_ = 0;
};

float gelu_tanh(float x) {
  constexpr float kFactor = 0.7978845608028654F;  // sqrt(2 / pi)
  return 0.5F * x * (1.0F + std::tanh(kFactor * (x + 0.044715F * x * x * x)));
}

float apply(Activation activation, float x) {
  switch (activation) {
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::gelu_erf:
      return 0.5F * x * (1.0F + std::erf(x / std::numbers::sqrt2_v<float>));
    case Activation::silu:
      return x / (1.0F + std::exp(-x));
    case Activation::none:
      break;
  }
  return x;
}

// A modulation's vector for one row.
class Row {
 public:
  Row(const Modulation& m, std::int64_t index)
      : table_(m.table),
        row_(m.rows != nullptr ? static_cast<const float*>(m.rows) + index * m.stride : nullptr) {}
  float at(std::int64_t c, float absent) const {
    if (table_ == nullptr) return absent;
    return row_ != nullptr ? table_[c] + row_[c] : table_[c];
  }

 private:
  const float* table_;
  const float* row_;
};

class CpuOps final : public Ops {
 public:
  explicit CpuOps(int threads)
      : threads_(threads > 0 ? threads
                             : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {
  }

  Device device() const override { return Device::cpu(); }
  void* stream() const override { return nullptr; }
  std::size_t free_bytes() const override {
    std::ifstream file("/proc/meminfo");
    std::string name;
    std::size_t kib = 0;
    std::string unit;
    while (file >> name >> kib >> unit) {
      if (name == "MemAvailable:") return kib * 1024;
    }
    return total_bytes();
  }
  std::size_t total_bytes() const override {
    struct sysinfo info {};
    if (::sysinfo(&info) != 0) return 0;
    return static_cast<std::size_t>(info.totalram) * info.mem_unit;
  }
  std::string library() const override { return blas_.text(); }

  Memory allocate(std::size_t bytes) override {
    const std::size_t size =
        (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    void* const data = std::aligned_alloc(kAlignment, size);
    if (data == nullptr)
      fail(ErrorCode::OutOfMemory, "{} bytes of memory cannot be allocated", size);
    return {std::shared_ptr<void>(data, [](void* p) { std::free(p); }),
            static_cast<std::byte*>(data), bytes};
  }
  Memory allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void upload(void* target, std::size_t bytes, const Fill& fill) override {
    fill({static_cast<std::byte*>(target), bytes}, 0);
  }
  void copy_in(void* target, const void* host, std::size_t bytes) override {
    std::memcpy(target, host, bytes);
  }
  void copy_out(void* host, const void* source, std::size_t bytes) override {
    std::memcpy(host, source, bytes);
  }
  void synchronize() override {}

  void fill_random(void* target, std::size_t count, DType dtype, float mean, float spread,
                   std::uint64_t seed) override {
    expect_float32(dtype);
    auto* const out = static_cast<float*>(target);
    each(static_cast<std::int64_t>(count), 1, [&](std::int64_t i) {
      out[i] = mean + spread * uniform(seed, static_cast<std::uint64_t>(i));
    });
  }

  void prepare(const LinearCall& call) override { expect_float32(call.dtype); }

  void linear(const LinearCall& call) override {
    expect_float32(call.dtype);
    const auto* const x = static_cast<const float*>(call.x);
    const auto* const bias = static_cast<const float*>(call.bias);
    auto* const out = static_cast<float*>(call.out);
    const std::int64_t n = call.n_out;
    each(call.rows, n, [&](std::int64_t r) { std::copy_n(bias, n, out + r * n); });
    blas_.set_threads(static_cast<int>(
        std::clamp<std::int64_t>(call.rows * n * call.n_in / kProductOfThread, 1, threads_)));
    // BLAS counts in int: long inputs go in parts.
    constexpr std::int64_t kRows = 1 << 20;
    for (std::int64_t r = 0; r < call.rows; r += kRows) {
      const std::int64_t rows = std::min(kRows, call.rows - r);
      blas_.product(static_cast<int>(rows), static_cast<int>(n), static_cast<int>(call.n_in),
                    x + r * call.n_in, static_cast<const float*>(call.weight), out + r * n);
    }
    if (call.activation == Activation::none) return;
    each(call.rows, n, [&](std::int64_t r) {
      for (std::int64_t c = 0; c < n; ++c) out[r * n + c] = apply(call.activation, out[r * n + c]);
    });
  }

  void norm(const NormCall& call) override {
    expect_float32(call.dtype);
    each(call.rows, call.d, [&](std::int64_t r) { norm_row(call, r); });
  }

  void rms(const RmsCall& call) override {
    expect_float32(call.dtype);
    each(call.rows, 2 * call.d, [&](std::int64_t r) {
      rms_row(call, static_cast<float*>(call.q) + r * call.stride, call.weight_q, r % call.tokens);
      if (call.k != nullptr)
        rms_row(call, static_cast<float*>(call.k) + r * call.stride, call.weight_k,
                r % call.tokens);
    });
  }

  void add(void* a, const void* b, std::size_t count, DType dtype) override {
    expect_float32(dtype);
    auto* const to = static_cast<float*>(a);
    const auto* const from = static_cast<const float*>(b);
    each(static_cast<std::int64_t>(count), 1, [&](std::int64_t i) { to[i] += from[i]; });
  }

  void activate(const void* x, DType x_dtype, void* out, DType out_dtype, std::size_t count,
                Activation activation) override {
    expect_float32(x_dtype);
    expect_float32(out_dtype);
    const auto* const from = static_cast<const float*>(x);
    auto* const to = static_cast<float*>(out);
    each(static_cast<std::int64_t>(count), 1,
         [&](std::int64_t i) { to[i] = apply(activation, from[i]); });
  }

  void patchify(const PatchCall& call) override {
    patches(call, [&](std::int64_t latent, std::int64_t row, std::int64_t c, std::int64_t inner) {
      const std::int64_t size = call.pt * call.ph * call.pw;
      static_cast<float*>(call.rows)[row * call.channels * size + c * size + inner] =
          call.latents[latent];
    });
  }
  void unpatchify(const PatchCall& call) override {
    patches(call, [&](std::int64_t latent, std::int64_t row, std::int64_t c, std::int64_t inner) {
      const std::int64_t size = call.pt * call.ph * call.pw;
      call.latents[latent] = static_cast<const float*>(
          call.rows)[row * call.channels * size + inner * call.channels + c];
    });
  }

  std::function<void()> record(std::function<void()> work) override {
    work();
    return work;
  }

  void start_timing() override {
    times_ = {};
    started_ = Clock::now();
    work_ = Work::other;
    timing_ = true;
  }
  void mark(Work work) override {
    if (!timing_) return;
    take();
    work_ = work;
  }
  Times finish_timing() override {
    take();
    timing_ = false;
    return times_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static void expect_float32(DType dtype) {
    if (dtype != DType::f32)
      fail(ErrorCode::Unsupported, "the CPU computes in float32, not in {}", name_of(dtype));
  }

  void take() {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - started_).count();
    (work_ == Work::attention ? times_.attention
     : work_ == Work::linear  ? times_.linear
                              : times_.other) += seconds;
    started_ = now;
  }

  // body(i) for i in [0, count), each of `elements` elements.
  template <class Body>
  void each(std::int64_t count, std::int64_t elements, const Body& body) const {
    const std::int64_t useful = count * elements / kElementsOfThread;
    const std::int64_t parts = std::clamp<std::int64_t>(useful, 1, threads_);
    const auto part = [&](std::int64_t p) {
      for (std::int64_t i = count * p / parts; i < count * (p + 1) / parts; ++i) body(i);
    };
    std::vector<std::thread> threads;
    for (std::int64_t p = 1; p < parts; ++p) threads.emplace_back(part, p);
    part(0);
    for (std::thread& thread : threads) thread.join();
  }

  static void norm_row(const NormCall& call, std::int64_t r) {
    const std::int64_t d = call.d;
    const std::int64_t index = call.index != nullptr ? call.index[r] : 0;
    float* const x = static_cast<float*>(call.x) + r * d;
    if (call.y != nullptr) {
      const float* const y = static_cast<const float*>(call.y) + r * d;
      const Row gate(call.gate, index);
      for (std::int64_t c = 0; c < d; ++c) x[c] += y[c] * gate.at(c, 1);
    }
    double sum = 0;
    for (std::int64_t c = 0; c < d; ++c) sum += x[c];
    const double mean = sum / static_cast<double>(d);
    double square = 0;
    for (std::int64_t c = 0; c < d; ++c) square += (x[c] - mean) * (x[c] - mean);
    const auto rstd = static_cast<float>(1 / std::sqrt(square / static_cast<double>(d) + call.eps));
    const Row scale(call.scale, index);
    const Row shift(call.shift, index);
    float* const out = static_cast<float*>(call.out) + r * d;
    for (std::int64_t c = 0; c < d; ++c) {
      const float normal = (x[c] - static_cast<float>(mean)) * rstd;
      out[c] = normal * (call.unit + scale.at(c, 0)) + shift.at(c, 0);
    }
  }

  static void rms_row(const RmsCall& call, float* v, const float* weight, std::int64_t token) {
    double square = 0;
    for (std::int64_t c = 0; c < call.d; ++c) square += static_cast<double>(v[c]) * v[c];
    const auto factor =
        static_cast<float>(1 / std::sqrt(square / static_cast<double>(call.d) + call.eps));
    for (std::int64_t c = 0; c < call.d; ++c) v[c] = v[c] * factor * weight[c];
    if (call.rope == nullptr) return;
    const float* const angles = call.rope + token * call.head_dim;
    for (std::int64_t c = 0; c < call.d; c += 2) {
      const float cos = angles[c % call.head_dim];
      const float sin = angles[c % call.head_dim + 1];
      const float a = v[c];
      const float b = v[c + 1];
      v[c] = a * cos - b * sin;
      v[c + 1] = a * sin + b * cos;
    }
  }

  // body(element of the latents, row, channel, place in the patch).
  template <class Body>
  void patches(const PatchCall& p, const Body& body) const {
    expect_float32(p.dtype);
    const std::int64_t gf = p.frames / p.pt;
    const std::int64_t gh = p.height / p.ph;
    const std::int64_t gw = p.width / p.pw;
    const std::int64_t plane = p.frames * p.height * p.width;
    each(p.batch * p.channels, plane, [&](std::int64_t image) {
      const std::int64_t b = image / p.channels;
      const std::int64_t c = image % p.channels;
      for (std::int64_t i = 0; i < plane; ++i) {
        const std::int64_t f = i / (p.height * p.width);
        const std::int64_t h = i / p.width % p.height;
        const std::int64_t w = i % p.width;
        const std::int64_t row = ((b * gf + f / p.pt) * gh + h / p.ph) * gw + w / p.pw;
        body(image * plane + i, row, c, (f % p.pt * p.ph + h % p.ph) * p.pw + w % p.pw);
      }
    });
  }

  OpenBlas blas_;
  int threads_;
  bool timing_ = false;
  Work work_ = Work::other;
  Clock::time_point started_;
  Times times_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(int threads) { return std::make_unique<CpuOps>(threads); }

}  // namespace batten::wan
