#include "support/bench_inputs.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "half.hpp"
#include "support/interrupt.hpp"
#include "support/normal.hpp"
#include "support/timer.hpp"

namespace batten::tools {
namespace {

// Inputs together exceed the cache this many times, so that what a set left behind is gone when its
// turn comes again.
constexpr std::size_t kCacheMultiple = 4;
constexpr std::size_t kMaxGpuSets = 64;
constexpr std::size_t kMaxCpuSets =
    8;  // caches of many MiB meet small shapes; bounded by set-up time

}  // namespace

std::size_t number_of_sets(const BenchOptions& options, const BenchCase& shape, Device device) {
  if (options.sets > 0) return static_cast<std::size_t>(options.sets);
  const double exceeded = static_cast<double>(kCacheMultiple * cache_bytes(device));
  const double most = device.is_cpu() ? kMaxCpuSets : kMaxGpuSets;
  return static_cast<std::size_t>(
      std::clamp(std::ceil(exceeded / bytes_of(options, shape)), 1.0, most));
}

BenchInputs::BenchInputs(const BenchOptions& options, const BenchCase& shape, Device device,
                         std::uint64_t seed)
    : dtype_(options.dtype) {
  const std::int64_t width = options.head_size;
  const auto bytes = [&](std::int64_t rows, std::int64_t heads) {
    return static_cast<std::size_t>(shape.batch * rows * heads * width) * size_of(options.dtype);
  };
  const std::size_t q_bytes = bytes(shape.q, options.num_heads);
  const std::size_t kv_bytes = bytes(shape.kv, options.num_kv_heads);
  std::vector<std::byte> staging;
  const auto random = [&](std::size_t size) {
    conformance::DeviceMemory memory(device, size);
    ++seed;
    if (device.is_cpu()) {
      fill_normal({memory.data(), size}, options.dtype, seed);
    } else {
      staging.resize(size);
      fill_normal(staging, options.dtype, seed);
      memory.upload(staging);
    }
    return memory;
  };
  const auto view = [&](const conformance::DeviceMemory& memory, std::int64_t rows,
                        std::int64_t heads) {
    return TensorView(memory.data(), options.dtype, {shape.batch, rows, heads, width}, device);
  };
  const std::size_t count = number_of_sets(options, shape, device);
  for (std::size_t i = 0; i < count; ++i) {
    throw_if_interrupted();
    Stored set{.q = random(q_bytes),
               .k = random(kv_bytes),
               .v = random(kv_bytes),
               .out = conformance::DeviceMemory(device, q_bytes),
               .views = {}};
    set.views = {.q = view(set.q, shape.q, options.num_heads),
                 .k = view(set.k, shape.kv, options.num_kv_heads),
                 .v = view(set.v, shape.kv, options.num_kv_heads),
                 .out = view(set.out, shape.q, options.num_heads)};
    sets_.push_back(std::move(set));
  }
}

std::vector<float> BenchInputs::download(const conformance::DeviceMemory& memory) const {
  std::vector<std::byte> bytes(memory.size());
  memory.download(bytes);
  std::vector<float> values(bytes.size() / size_of(dtype_));
  conformance::decode(dtype_, bytes.data(), values);
  return values;
}

conformance::Inputs BenchInputs::first_inputs() const {
  const Stored& set = sets_.front();
  return {.q = download(set.q), .k = download(set.k), .v = download(set.v)};
}

std::vector<float> BenchInputs::first_output() const { return download(sets_.front().out); }

}  // namespace batten::tools
