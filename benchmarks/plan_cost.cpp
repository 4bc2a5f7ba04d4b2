// What a plan costs a process: the first one of each form, then shapes that were not seen before,
// by the time of batten::Attention::prepare. BATTEN_PLAN_CACHE=off shows the cost without files of
// earlier runs; a second run with them shows what they save. On a machine with a GPU:
//
//   BATTEN_PLAN_CACHE=off plan_cost > results/plan_cost.json
#include <fmt/format.h>

#include <algorithm>
#include <batten/batten.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/device.hpp"

namespace {

using Clock = std::chrono::steady_clock;

const batten::Device device = batten::Device::cuda(0);

struct Lengths {
  std::int64_t batch, q_rows, kv_rows;
};

// No two share a plan: each differs in batch or in a length.
constexpr Lengths kShapes[] = {
    {4, 128, 4096},   {8, 256, 4096},  {2, 1560, 512},    {1, 4680, 32760}, {1, 32760, 32760},
    {16, 1024, 4096}, {2, 27280, 512}, {1, 75600, 75600}, {3, 1000, 77},    {5, 4096, 4096}};

// Milliseconds of preparing a call of `form` ("cudnn", "cudnn:packed", "cudnn:lengths").
double prepare_ms(batten::Attention& attention, const std::string& form, const Lengths& shape) {
  using batten::TensorView;
  const auto [batch, q_rows, kv_rows] = shape;
  constexpr int kHeads = 12, kDim = 128;
  const auto view = [&](std::int64_t rows) {
    return TensorView(nullptr, batten::bf16, {batch, rows, kHeads, kDim}, device);
  };
  batten::CallOptions options{.padding_is_finite = true};
  // One sample is shorter, so that the call is not simplified to the dense form.
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch),
                                    static_cast<std::int32_t>(kv_rows));
  lengths.front() -= 1;
  if (form == "cudnn:lengths") options.kv_lengths = lengths;
  const auto start = Clock::now();
  attention.prepare(view(q_rows), view(kv_rows), view(kv_rows), view(q_rows), options);
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

nlohmann::json measure(const std::string& form) {
  batten::Attention attention({.dtype = batten::bf16, .num_heads = 12, .head_dim = 128}, device,
                              {.backend = form});
  std::vector<double> times;
  nlohmann::json rows = nlohmann::json::array();
  for (const Lengths& shape : kShapes) {
    times.push_back(prepare_ms(attention, form, shape));
    rows.push_back({{"batch_size", shape.batch},
                    {"query_length", shape.q_rows},
                    {"kv_length", shape.kv_rows},
                    {"prepare_ms", times.back()}});
  }
  const double first = times.front();
  times.erase(times.begin());
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  fmt::print(stderr, "{:14} first {:7.1f} ms, new shapes {:.1f} to {:.1f} ms\n", form, first,
             *least, *most);
  return {{"form", form}, {"first_ms", first}, {"shapes", rows}};
}

}  // namespace

int main() {
  try {
    nlohmann::json results = nlohmann::json::array();
    for (const char* form : {"cudnn", "cudnn:packed", "cudnn:lengths"}) {
      results.push_back(measure(form));
    }
    const char* files = std::getenv("BATTEN_PLAN_CACHE");
    const nlohmann::json payload{
        {"gpu", batten::impl::device_runtime().properties(0).name},
        {"plan_files", files != nullptr && std::string(files) == "off" ? "off" : "on"},
        {"results", results}};
    fmt::print("{}\n", payload.dump(1));
  } catch (const batten::Error& error) {
    fmt::print(stderr, "plan_cost: error: {}\n", error.what());
    return error.code() == batten::ErrorCode::Unavailable ? 4 : 1;
  }
  return 0;
}
