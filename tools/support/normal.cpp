#include "support/normal.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "half.hpp"
#include "random.hpp"

namespace batten::tools {
namespace {

constexpr std::size_t kQuantiles = 65536;
// Elements that one stream of random numbers fills. Fixed, so that the number of threads does not
// change the values.
constexpr std::size_t kBlock = std::size_t{1} << 20;

// Upper half of the normal quantile function, by bisection: slow, exact, and run once.
double normal_quantile(double p) {
  double low = 0;
  double high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::numbers::sqrt2) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

const std::array<float, kQuantiles>& quantiles() {
  static const auto table = [] {
    auto values = std::make_unique<std::array<float, kQuantiles>>();
    for (std::size_t i = 0; i < kQuantiles / 2; ++i) {
      const double p = 0.5 + (static_cast<double>(i) + 0.5) / static_cast<double>(kQuantiles);
      const auto value = static_cast<float>(normal_quantile(p));
      (*values)[kQuantiles / 2 + i] = value;
      (*values)[kQuantiles / 2 - 1 - i] = -value;
    }
    return values;
  }();
  return *table;
}

template <class T>
void fill_block(std::byte* out, std::size_t count, const T* table, std::uint64_t seed) {
  conformance::Random generator(seed);
  std::array<T, 4> four{};
  for (std::size_t i = 0; i < count; i += four.size()) {
    const std::uint64_t random = generator.bits();
    for (std::size_t j = 0; j < four.size(); ++j) four[j] = table[(random >> (16 * j)) & 0xFFFFU];
    std::memcpy(out + i * sizeof(T), four.data(), std::min(four.size(), count - i) * sizeof(T));
  }
}

template <class T>
void fill(std::span<std::byte> out, const std::vector<T>& table, std::uint64_t seed) {
  const std::size_t count = out.size() / sizeof(T);
  const std::size_t blocks = (count + kBlock - 1) / kBlock;
  const std::size_t workers = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1,
                                                      std::max<std::size_t>(blocks, 1));
  const auto work = [&](std::size_t worker) {
    for (std::size_t b = worker; b < blocks; b += workers) {
      fill_block(out.data() + b * kBlock * sizeof(T), std::min(kBlock, count - b * kBlock),
                 table.data(), seed * 0x100000001B3U + b);
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t worker = 1; worker < workers; ++worker) threads.emplace_back(work, worker);
  work(0);
}

template <class T, class Convert>
std::vector<T> table_of(Convert convert) {
  std::vector<T> table(kQuantiles);
  std::transform(quantiles().begin(), quantiles().end(), table.begin(), convert);
  return table;
}

}  // namespace

void fill_normal(std::span<std::byte> out, DType dtype, std::uint64_t seed) {
  switch (dtype) {
    case DType::f32: {
      static const auto table = table_of<float>([](float value) { return value; });
      return fill(out, table, seed);
    }
    case DType::f16: {
      static const auto table = table_of<std::uint16_t>(conformance::to_f16);
      return fill(out, table, seed);
    }
    case DType::bf16: {
      static const auto table = table_of<std::uint16_t>(conformance::to_bf16);
      return fill(out, table, seed);
    }
    case DType::i32:
    case DType::none:
      break;
  }
  fail(ErrorCode::Internal, "fill_normal: {} is not a floating-point type", name_of(dtype));
}

}  // namespace batten::tools
