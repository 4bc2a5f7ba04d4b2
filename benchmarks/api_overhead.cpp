// What the public call adds to the backend's own: the same plan run directly, through
// batten_forward without a receipt, and through batten::Attention::forward, in turns, an event pair
// around each call. On a machine with a GPU:
//
//   api_overhead [backend...] > results/api_overhead.json
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <batten/batten.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/cuda_runtime.hpp"
#include "dispatch/choice.hpp"
#include "problem/validate.hpp"

namespace {

using namespace batten::impl;
using Clock = std::chrono::steady_clock;

constexpr int kWarmups = 30;
constexpr int kRepeats = 200;
constexpr int kHeads = 12, kKvHeads = 4, kDim = 128;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Device memory full of bf16 values near 1, which keeps every backend finite.
struct Buffer {
  explicit Buffer(std::int64_t elements) {
    const auto bytes = static_cast<std::size_t>(elements) * 2;
    check_cuda(cudaMalloc(&data, bytes), "cudaMalloc");
    std::vector<std::uint16_t> host(static_cast<std::size_t>(elements));
    std::uint32_t state = 1;
    for (auto& value : host) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<std::uint16_t>(0x3f00u + (state >> 26) + ((state >> 16 & 1u) << 15));
    }
    check_cuda(cudaMemcpy(data, host.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~Buffer() { (void)cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data = nullptr;
};

// One contender's samples: GPU milliseconds between the events, host microseconds in the call.
struct Samples {
  std::vector<double> gpu_ms, host_us;

  template <class Call>
  void add(cudaStream_t stream, cudaEvent_t begin, cudaEvent_t end, Call&& call) {
    check_cuda(cudaEventRecord(begin, stream), "cudaEventRecord");
    const auto start = Clock::now();
    call();
    host_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    check_cuda(cudaEventRecord(end, stream), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    gpu_ms.push_back(ms);
  }
};

nlohmann::json measure(const std::string& backend_name, std::int64_t batch, std::int64_t q_rows,
                       std::int64_t kv_rows) {
  const batten::Device device = batten::Device::cuda(0);
  const Buffer q(batch * q_rows * kHeads * kDim), out(batch * q_rows * kHeads * kDim);
  const Buffer k(batch * kv_rows * kKvHeads * kDim), v(batch * kv_rows * kKvHeads * kDim);
  const batten::Problem problem{
      .dtype = batten::bf16, .num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kDim};
  batten::Attention attention(problem, device, {.backend = backend_name});
  const batten::TensorView q_view(q.data, batten::bf16, {batch, q_rows, kHeads, kDim}, device);
  const batten::TensorView k_view(k.data, batten::bf16, {batch, kv_rows, kKvHeads, kDim}, device);
  const batten::TensorView v_view(v.data, batten::bf16, {batch, kv_rows, kKvHeads, kDim}, device);
  const batten::TensorView out_view(out.data, batten::bf16, {batch, q_rows, kHeads, kDim}, device);

  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end), "cudaEventCreate");

  // The raw call: validated once, its plan and scratch at hand.
  batten_problem raw_problem{};
  raw_problem.struct_size = sizeof(raw_problem);
  raw_problem.dtype = BATTEN_BF16;
  raw_problem.num_heads = kHeads;
  raw_problem.num_kv_heads = kKvHeads;
  raw_problem.head_dim = kDim;
  const ValidatedProblem validated = validate_problem(raw_problem);
  batten_call raw_call{};
  raw_call.struct_size = sizeof(raw_call);
  raw_call.q = &q_view.raw();
  raw_call.k = &k_view.raw();
  raw_call.v = &v_view.raw();
  raw_call.out = &out_view.raw();
  raw_call.padding_is_finite = 1;
  raw_call.stream = stream;
  const ValidatedCall call = validate_call(validated, device, raw_call, Pointers::required);
  const Choice choice = resolve_choice(backend_name.c_str());
  const BackendOptions options{.form = choice.form, .num_threads = 0};
  const auto plan = choice.backend->plan(
      validated.problem, choice.backend->plan_key(validated.problem, call.shape, options), device,
      options);
  void* workspace = nullptr;
  check_cuda(cudaMalloc(&workspace, std::max<std::size_t>(plan->info().workspace_size, 256)),
             "cudaMalloc");

  const auto run_raw = [&] { plan->run(call.shape, call.call, workspace); };
  const auto run_abi = [&] {
    batten::capi::check(batten_forward(attention.handle(), &raw_call, nullptr));
  };
  const auto run_api = [&] {
    attention.forward(q_view, k_view, v_view, out_view,
                      {.padding_is_finite = true, .stream = stream});
  };
  Samples raw, abi, api;
  for (int i = 0; i < kWarmups + kRepeats; ++i) {
    if (i == kWarmups) raw = abi = api = {};
    raw.add(stream, begin, end, run_raw);
    abi.add(stream, begin, end, run_abi);
    api.add(stream, begin, end, run_api);
  }
  const double raw_ms = median(raw.gpu_ms), abi_ms = median(abi.gpu_ms),
               api_ms = median(api.gpu_ms);
  fmt::print(
      stderr,
      "{:16} B{:<2} {:>4}x{}: plan {:8.2f} us, batten_forward {:+.2f} %, forward {:+.2f} %; host "
      "{:.2f}, {:.2f}, {:.2f} us\n",
      backend_name, batch, q_rows, kv_rows, raw_ms * 1e3, (abi_ms / raw_ms - 1) * 100,
      (api_ms / raw_ms - 1) * 100, median(raw.host_us), median(abi.host_us), median(api.host_us));
  (void)cudaFree(workspace);
  (void)cudaStreamDestroy(stream);
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  return {{"backend", backend_name},
          {"batch_size", batch},
          {"query_length", q_rows},
          {"kv_length", kv_rows},
          {"raw_median_ms", raw_ms},
          {"abi_median_ms", abi_ms},
          {"forward_median_ms", api_ms},
          {"abi_overhead_percent", (abi_ms / raw_ms - 1) * 100},
          {"overhead_percent", (api_ms / raw_ms - 1) * 100},
          {"raw_host_us", median(raw.host_us)},
          {"abi_host_us", median(abi.host_us)},
          {"forward_host_us", median(api.host_us)}};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> backends(argv + 1, argv + argc);
  if (backends.empty()) backends = {"cudnn", "cudnn:packed", "single"};
  try {
    nlohmann::json results = nlohmann::json::array();
    for (const std::string& backend : backends) {
      for (const int batch : {4, 8, 16, 32}) {
        for (const int rows : {128, 256, 512, 1024}) {
          results.push_back(measure(backend, batch, rows, 4096));
        }
      }
    }
    const nlohmann::json payload{{"gpu", device_runtime().properties(0).name},
                                 {"timing_scope", "call"},
                                 {"warmups", kWarmups},
                                 {"repeats", kRepeats},
                                 {"results", results}};
    fmt::print("{}\n", payload.dump(1));
  } catch (const batten::Error& error) {
    fmt::print(stderr, "api_overhead: error: {}\n", error.what());
    return error.code() == batten::ErrorCode::Unavailable ? 4 : 1;
  }
  return 0;
}
