// How near the cpu backend comes to the machine's multiply-add peak.
//
//   cpu_attention [--output FILE.json] [--threads 1,2] [--lengths 1024,2048,4096] [--rounds 9]
//
// All contenders of a thread count run in turns within one process; numbers are medians over
// rounds.
#include <cblas.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/cpu.hpp"
#include "core/half.hpp"
#include "core/thread_pool.hpp"
#include "fma_peak.hpp"
#include "support/cpu.hpp"

namespace {

using batten::DType;
using nlohmann::json;

constexpr int kHeads = 4;
constexpr int kHeadDim = 128;

// Wall time of a run, and its CPU time on all threads. Where other processes want the cores, wall
// time says little, and CPU time by one thread is what it would take on an idle machine.
struct Seconds {
  double wall = 0;
  double cpu = 0;
};

double clock_seconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Seconds seconds_of(const std::function<void()>& function) {
  const Seconds start = {clock_seconds(CLOCK_MONOTONIC), clock_seconds(CLOCK_PROCESS_CPUTIME_ID)};
  function();
  return {clock_seconds(CLOCK_MONOTONIC) - start.wall,
          clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - start.cpu};
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

// Normal random numbers as elements of `dtype`.
std::vector<std::byte> random_tensor(DType dtype, std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> bytes(count * batten::size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const float x = normal(generator);
    if (dtype == DType::f32) {
      std::memcpy(&bytes[i * 4], &x, 4);
      continue;
    }
    const std::uint16_t bits =
        dtype == DType::f16 ? batten::impl::float_to_half(x) : batten::impl::float_to_bfloat16(x);
    std::memcpy(&bytes[i * 2], &bits, 2);
  }
  return bytes;
}

// One attention call on the backend's own interface, [1, S, kHeads, kHeadDim].
class AttentionRun {
 public:
  AttentionRun(DType dtype, std::int64_t length, int threads) {
    using namespace batten::impl;
    Problem problem;
    problem.dtype = problem.out_dtype = dtype;
    problem.num_heads = problem.num_kv_heads = kHeads;
    problem.head_dim = problem.head_dim_v = kHeadDim;
    shape_.batch = 1;
    shape_.max_q = shape_.max_kv = shape_.tokens_q = shape_.tokens_kv = length;
    const Layout layout = {
        .batch = length * kHeads * kHeadDim, .row = kHeads * kHeadDim, .head = kHeadDim};
    shape_.q = shape_.k = shape_.v = shape_.out = layout;
    const auto count = static_cast<std::size_t>(layout.batch);
    q_ = random_tensor(dtype, count, 1);
    k_ = random_tensor(dtype, count, 2);
    v_ = random_tensor(dtype, count, 3);
    out_.resize(q_.size());
    call_.q = q_.data();
    call_.k = k_.data();
    call_.v = v_.data();
    call_.out = out_.data();
    call_.scale = 1 / std::sqrt(static_cast<double>(kHeadDim));

    const auto backend = make_cpu();
    const BackendOptions options = {.form = {}, .num_threads = threads};
    plan_ = backend->plan(problem, backend->plan_key(problem, shape_, options),
                          batten::Device::cpu(), options);
    workspace_.resize(plan_->info().workspace_size + kAlignment);
    const auto address = reinterpret_cast<std::uintptr_t>(workspace_.data());
    aligned_ = workspace_.data() + (kAlignment - address % kAlignment) % kAlignment;
  }

  void operator()() const { plan_->run(shape_, call_, aligned_); }
  std::string kernel() const { return plan_->info().kernel + " " + plan_->info().tile; }
  double flops() const {
    const auto length = static_cast<double>(shape_.max_q);
    return 4 * length * length * kHeads * kHeadDim;
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  batten::impl::Shape shape_;
  batten::impl::Call call_;
  std::vector<std::byte> q_, k_, v_, out_, workspace_;
  std::byte* aligned_ = nullptr;
  std::shared_ptr<const batten::impl::Plan> plan_;
};

// A square SGEMM, OpenBLAS's best case.
class Sgemm {
 public:
  static constexpr int kSize = 1536;
  Sgemm() : a_(kSize * kSize, 0.5f), b_(kSize * kSize, 0.25f), c_(kSize * kSize) {}
  void operator()() {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSize, kSize, kSize, 1, a_.data(), kSize,
                b_.data(), kSize, 0, c_.data(), kSize);
  }
  static double flops() { return 2.0 * kSize * kSize * kSize; }

 private:
  std::vector<float> a_, b_, c_;
};

std::vector<std::int64_t> numbers_of(const std::string& list) {
  std::vector<std::int64_t> numbers;
  for (std::size_t at = 0; at < list.size();) {
    std::size_t used = 0;
    numbers.push_back(std::stoll(list.substr(at), &used));
    at += used + 1;
  }
  return numbers;
}

struct Options {
  std::string output;
  std::vector<std::int64_t> threads = {1, batten::impl::available_cpus()};
  std::vector<std::int64_t> lengths = {1024, 2048, 4096};
  int rounds = 9;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--output") options.output = value;
    if (name == "--threads") options.threads = numbers_of(value);
    if (name == "--lengths") options.lengths = numbers_of(value);
    if (name == "--rounds") options.rounds = std::stoi(value);
  }
  return options;
}

void run_threads(const Options& options, int threads, json& results) {
  openblas_set_num_threads(threads);
  struct Contender {
    json fields;
    std::function<void()> run;
    double flops;
    std::vector<double> wall = {};
    std::vector<double> cpu = {};
  };
  std::vector<Contender> contenders;
  const auto gemm = std::make_shared<Sgemm>();
  contenders.push_back({{{"what", "sgemm"},
                         {"dtype", "float32"},
                         {"length", Sgemm::kSize},
                         {"kernel", std::string("OpenBLAS ") + openblas_get_corename()}},
                        [gemm] { (*gemm)(); },
                        Sgemm::flops()});
  for (const std::int64_t length : options.lengths) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const auto run = std::make_shared<AttentionRun>(dtype, length, threads);
      contenders.push_back({{{"what", "attention"},
                             {"dtype", batten::name_of(dtype)},
                             {"length", length},
                             {"heads", kHeads},
                             {"head_dim", kHeadDim},
                             {"kernel", run->kernel()}},
                            [run] { (*run)(); },
                            run->flops()});
    }
  }
  // The peak is measured among the others, since clocks and neighbours change.
  std::vector<double> peaks;
  for (int round = 0; round <= options.rounds; ++round) {
    if (round > 0) peaks.push_back(batten::benchmarks::fma_peak_gflops(threads));
    for (Contender& c : contenders) {
      const Seconds seconds = seconds_of(c.run);
      if (round == 0) continue;  // warms up
      c.wall.push_back(seconds.wall);
      c.cpu.push_back(seconds.cpu);
    }
  }
  const double peak = median(peaks);
  fmt::print("{} thread{}: fp32 multiply-add peak {:.1f} GFLOP/s ({})\n", threads,
             threads == 1 ? "" : "s", peak, batten::benchmarks::fma_peak_target());
  for (Contender& c : contenders) {
    const double rate = c.flops / median(c.wall) * 1e-9;
    const double cpu_rate = c.flops / median(c.cpu) * 1e-9 * threads;
    fmt::print(
        "  {:9} {:8} {:5}  {:8.2f} ms {:7.1f} GFLOP/s  {:5.1f} % of peak ({:5.1f} % by CPU time)   "
        "{}\n",
        c.fields["what"].get<std::string>(), c.fields["dtype"].get<std::string>(),
        c.fields["length"].get<std::int64_t>(), median(c.wall) * 1e3, rate, 100 * rate / peak,
        100 * cpu_rate / peak, c.fields["kernel"].get<std::string>());
    c.fields["threads"] = threads;
    c.fields["median_ms"] = median(c.wall) * 1e3;
    c.fields["median_cpu_ms"] = median(c.cpu) * 1e3;
    c.fields["gflops"] = rate;
    c.fields["peak_gflops"] = peak;
    c.fields["fraction_of_peak"] = rate / peak;
    c.fields["fraction_of_peak_by_cpu_time"] = cpu_rate / peak;
    results.push_back(c.fields);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  double load = 0;
  getloadavg(&load, 1);  // near 0: wall time can be trusted
  json document = {{"environment",
                    {{"cpu", batten::tools::describe_cpu().model},
                     {"cpus", batten::impl::available_cpus()},
                     {"load_average", load}}},
                   {"rounds", options.rounds},
                   {"results", json::array()}};
  for (const std::int64_t threads : options.threads) {
    run_threads(options, static_cast<int>(threads), document["results"]);
  }
  if (!options.output.empty()) std::ofstream(options.output) << document.dump(2) << "\n";
  return 0;
}
