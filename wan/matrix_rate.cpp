#include <chrono>
#include <cmath>

#include "wan/ops.hpp"

namespace batten::wan {
namespace {

// A CPU that takes longer than this for the calls need not do them all. (A GPU only queues them.)
constexpr std::chrono::seconds kEnough{2};

}  // namespace

double matrix_rate(Ops& ops, DType dtype) {
  const bool cpu = ops.device().is_cpu();
  const std::int64_t n = cpu ? 1024 : 8192;
  const auto elements = static_cast<std::size_t>(n * n);
  const std::size_t bytes = elements * size_of(dtype);
  const Memory x = ops.allocate(bytes);
  const Memory weight = ops.allocate(bytes);
  const Memory bias = ops.allocate(static_cast<std::size_t>(n) * size_of(dtype));
  const Memory out = ops.allocate(bytes);
  const float spread = std::sqrt(3.0F / static_cast<float>(n));
  ops.fill_random(x.data, elements, dtype, 0, 1.7F, 1);
  ops.fill_random(weight.data, elements, dtype, 0, spread, 2);
  ops.fill_random(bias.data, static_cast<std::size_t>(n), dtype, 0, spread, 3);
  const LinearCall call{.x = x.data,
                        .weight = weight.data,
                        .bias = bias.data,
                        .out = out.data,
                        .rows = n,
                        .n_in = n,
                        .n_out = n,
                        .dtype = dtype};
  ops.prepare(call);
  ops.linear(call);
  // Long enough that a GPU reaches the clock that its power allows, as it will in a step.
  const int most_calls = cpu ? 10 : dtype == DType::f32 ? 40 : 400;
  int calls = 0;
  ops.start_timing();
  ops.mark(Work::linear);
  const auto start = std::chrono::steady_clock::now();
  while (calls < most_calls && std::chrono::steady_clock::now() - start < kEnough) {
    ops.linear(call);
    ++calls;
  }
  const double seconds = ops.finish_timing().total();
  const double cubed =
      2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  return calls * cubed / seconds / 1e12;
}

}  // namespace batten::wan
