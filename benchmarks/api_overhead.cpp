// What the public call adds to the backend's own: the same plan run directly (twice, for the
// noise), through batten_forward without a receipt, and through batten::Attention::forward. GPU
// time: in turns, an event pair around each call, waiting in between. Host time, from call to
// return: there, where the thread has just waited for the device, and in a queue of calls without a
// wait, as a model makes them. On a machine with a GPU:
//
//   api_overhead [backend...] > results/api_overhead.json
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <batten/batten.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/cuda_runtime.hpp"
#include "dispatch/choice.hpp"
#include "problem/validate.hpp"

namespace {

using namespace batten::impl;
using Clock = std::chrono::steady_clock;

constexpr int kPasses =
    3;  // over the whole grid, so that a busy moment of the host is one of three
constexpr int kWarmups = 20;
constexpr int kRepeats = 80;
// Short enough for the device's queue of launches to hold it: a full one makes a call wait.
constexpr int kQueued = 10, kQueues = 20;
constexpr int kHeads = 12, kKvHeads = 4, kDim = 128;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// The mean of the middle half: events tick in steps that are coarse against 1 % of a short call,
// and a median can only be one of them.
double middle_mean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto quarter = static_cast<std::ptrdiff_t>(values.size() / 4);
  const double sum = std::accumulate(values.begin() + quarter, values.end() - quarter, 0.0);
  return sum / static_cast<double>(values.size() - 2 * static_cast<std::size_t>(quarter));
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

// Host microseconds of one call in a queue of kQueued: the median over kQueues queues.
template <class Call>
double queued_us(cudaStream_t stream, Call&& call) {
  std::vector<double> each;
  for (int queue = 0; queue < kQueues; ++queue) {
    const auto start = Clock::now();
    for (int i = 0; i < kQueued; ++i) call();
    each.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() /
                   kQueued);
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  return median(std::move(each));
}

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
  // auto's plan is that of the backend it takes: what it costs to choose is part of the call.
  const batten::Receipt first = attention.forward(q_view, k_view, v_view, out_view,
                                                  {.padding_is_finite = true, .stream = stream});
  const bool chooses = resolve_choice(backend_name.c_str()).backend == nullptr;
  const Choice choice =
      resolve_choice(chooses ? std::string(first.backend()).c_str() : backend_name.c_str());
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
  Samples raw, again, abi, api;
  // In a new order each time: what ran before is worth a percent of a short call.
  std::vector<std::function<void()>> turns{[&] { raw.add(stream, begin, end, run_raw); },
                                           [&] { abi.add(stream, begin, end, run_abi); },
                                           [&] { again.add(stream, begin, end, run_raw); },
                                           [&] { api.add(stream, begin, end, run_api); }};
  std::mt19937 order(0);  // NOLINT: the same orders each run
  for (int i = 0; i < kWarmups + kRepeats; ++i) {
    if (i == kWarmups) raw = again = abi = api = {};
    std::shuffle(turns.begin(), turns.end(), order);
    for (const auto& turn : turns) turn();
  }
  const double raw_ms = (middle_mean(raw.gpu_ms) + middle_mean(again.gpu_ms)) / 2;
  const auto percent = [&](const Samples& s) { return (middle_mean(s.gpu_ms) / raw_ms - 1) * 100; };
  const double raw_queued = queued_us(stream, run_raw), api_queued = queued_us(stream, run_api);
  (void)cudaFree(workspace);
  (void)cudaStreamDestroy(stream);
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  return {{"backend", backend_name},
          {"batch_size", batch},
          {"query_length", q_rows},
          {"kv_length", kv_rows},
          {"raw_ms", raw_ms},
          {"raw_again_percent", percent(again)},
          {"abi_percent", percent(abi)},
          {"forward_percent", percent(api)},
          {"raw_host_us", median(raw.host_us)},
          {"abi_host_us", median(abi.host_us)},
          {"forward_host_us", median(api.host_us)},
          {"raw_queued_us", raw_queued},
          {"forward_queued_us", api_queued}};
}

// The median of each number of one row over the passes.
nlohmann::json median_of(const std::vector<nlohmann::json>& passes) {
  nlohmann::json row = passes.front();
  for (const auto& [key, value] : passes.front().items()) {
    if (!value.is_number_float()) continue;
    std::vector<double> values;
    for (const nlohmann::json& pass : passes) values.push_back(pass.at(key));
    row[key] = median(std::move(values));
  }
  return row;
}

void print(const nlohmann::json& row) {
  const auto number = [&](const char* key) { return row.at(key).get<double>(); };
  fmt::print(stderr,
             "{:12} B{:<2} {:>4}x{}: plan {:8.2f} us, again {:+.2f} %, batten_forward {:+.2f} %, "
             "forward {:+.2f} %; host {:.2f}, {:.2f} us, queued {:.2f}, {:.2f} us\n",
             row.at("backend").get<std::string>(), row.at("batch_size").get<int>(),
             row.at("query_length").get<int>(), row.at("kv_length").get<int>(),
             number("raw_ms") * 1e3, number("raw_again_percent"), number("abi_percent"),
             number("forward_percent"), number("raw_host_us"), number("forward_host_us"),
             number("raw_queued_us"), number("forward_queued_us"));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> backends(argv + 1, argv + argc);
  if (backends.empty()) backends = {"cudnn", "cudnn:packed", "single"};
  try {
    std::map<std::tuple<std::string, int, int>, std::vector<nlohmann::json>> rows;
    for (int pass = 0; pass < kPasses; ++pass) {
      for (const std::string& backend : backends) {
        for (const int batch : {4, 8, 16, 32}) {
          for (const int length : {128, 256, 512, 1024}) {
            rows[{backend, batch, length}].push_back(measure(backend, batch, length, 4096));
          }
        }
      }
    }
    nlohmann::json results = nlohmann::json::array();
    for (const auto& [key, passes] : rows) {
      results.push_back(median_of(passes));
      print(results.back());
    }
    const nlohmann::json payload{{"gpu", device_runtime().properties(0).name},
                                 {"timing_scope", "call"},
                                 {"passes", kPasses},
                                 {"warmups", kWarmups},
                                 {"repeats", kRepeats},
                                 {"queued_calls", kQueued},
                                 {"results", results}};
    fmt::print("{}\n", payload.dump(1));
  } catch (const batten::Error& error) {
    fmt::print(stderr, "api_overhead: error: {}\n", error.what());
    return error.code() == batten::ErrorCode::Unavailable ? 4 : 1;
  }
  return 0;
}
