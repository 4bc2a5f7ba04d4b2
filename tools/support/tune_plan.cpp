#include "support/tune_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace batten::tools {
namespace {

struct Kernel {
  const char* backend;
  const char* kernel;
  int head_dim;
  bool causal;
};

constexpr Kernel kKernels[] = {
    {"native", "native", 64, false},
    {"native", "native", 64, true},
    {"native", "native", 96, false},
    {"native", "native", 96, true},
    {"native", "native", 128, false},
    {"native", "native", 128, true},
    {"native", "native", 256, false},
    {"native", "native", 256, true},
    {"native", "native:sm80", 64, false},
    {"native", "native:sm80", 64, true},
    {"native", "native:sm80", 80, false},
    {"native", "native:sm80", 96, false},
    {"native", "native:sm80", 96, true},
    {"native", "native:sm80", 128, false},
    {"native", "native:sm80", 128, true},
    {"native", "native:sm80", 192, false},
    {"native", "native:sm80", 256, false},
    {"native", "native:sm80", 256, true},
    {"cudnn", "cudnn", 64, false},
    {"cudnn", "cudnn", 64, true},
    {"cudnn", "cudnn", 96, false},
    {"cudnn", "cudnn", 96, true},
    {"cudnn", "cudnn", 128, false},
    {"cudnn", "cudnn", 128, true},
    {"cudnn", "cudnn", 256, false},
    {"cudnn", "cudnn", 256, true},
    {"cudnn:packed", "cudnn:packed", 128, false},
    {"cudnn:packed", "cudnn:packed", 128, true},
    {"cudnn", "cudnn:decode", 64, false},
    {"cudnn", "cudnn:decode", 128, false},
    {"single", "single", 64, false},
    {"single", "single", 64, true},
    {"single", "single", 128, false},
    {"single", "single", 128, true},
    {"single", "single", 256, false},
    {"single", "single", 256, true},
};

constexpr int kTileRows = 128;
// Operations of the call that measures the power limit: some ten milliseconds on a large card.
constexpr double kPowerFlops = 6e12;

class Planner {
 public:
  Planner(const Kernel& kernel, int multiprocessors, std::vector<TuneCall>& calls)
      : kernel_(kernel), sms_(std::max(multiprocessors, 1)), calls_(calls) {}

  void plan() {
    if (std::string_view(kernel_.kernel) == "cudnn:decode") {
      decode();
    } else if (kernel_.causal) {
      causal();
    } else {
      full();
    }
  }

 private:
  void add(Purpose purpose, std::int64_t batch, std::int64_t queries, std::int64_t keys, int heads,
           int kv_heads) {
    calls_.push_back({.backend = kernel_.backend,
                      .kernel = kernel_.kernel,
                      .purpose = purpose,
                      .mask = kernel_.causal ? Mask::causal : Mask::none,
                      .batch = batch,
                      .queries = queries,
                      .keys = keys,
                      .num_heads = heads,
                      .num_kv_heads = kv_heads,
                      .head_dim = kernel_.head_dim});
  }

  // A call of one sample with about `rounds` tiles for each multiprocessor. Few heads, so that no
  // backend repeats a launch.
  void tiles(double rounds, std::int64_t keys, int heads = 12, int kv_heads = 4) {
    const double row_tiles = std::max(1.0, rounds * sms_ / heads);
    add(Purpose::costs, 1, static_cast<std::int64_t>(row_tiles) * kTileRows, keys, heads, kv_heads);
  }

  void full() {
    // Few tiles and keys: a launch's share is largest, and the next call begins before it ends.
    add(Purpose::costs, 1, 60, 60, 4, 4);
    add(Purpose::costs, 4, 40, 100, 4, 2);
    add(Purpose::costs, 2, 300, 300, 4, 4);
    add(Purpose::costs, 8, 30, 900, 5, 1);
    tiles(0.3, 256);
    tiles(0.9, 1024);
    tiles(0.9, 4096);
    tiles(0.4, 8192);
    tiles(1.9, 512);
    tiles(1.9, 2048);
    tiles(3.9, 512, 16, 16);
    tiles(5.8, 1024);
    add(Purpose::costs, 4, 200, 1000, 12, 12);
    // Few tiles with many keys: what dividing them costs, where a kernel does.
    add(Purpose::costs, 1, 100, 16384, 12, 12);
    add(Purpose::costs, 1, 16, 16384, 40, 40);
    power();
    // One query row of a key head each, so that next to nothing is computed for each byte.
    add(Purpose::memory, 1, 16, 32768, 24, 24);
  }

  void causal() {
    for (const auto& [batch, length, heads] :
         {std::tuple{2, 60, 4}, std::tuple{3, 150, 12}, std::tuple{7, 280, 8},
          std::tuple{1, 512, 16}, std::tuple{2, 1024, 8}, std::tuple{8, 512, 16},
          std::tuple{4, 1024, 16}, std::tuple{1, 2048, 12}, std::tuple{1, 4096, 8},
          std::tuple{2, 3000, 16}}) {
      add(Purpose::costs, batch, length, length, heads, heads);
    }
    add(Purpose::costs, 2, 512, 4096, 12, 4);
    power();
  }

  void power() {
    constexpr int kHeads = 16;
    const std::int64_t length = kernel_.causal ? 16384 : 8192;
    const double one = 4.0 * static_cast<double>(length * length) * kHeads * kernel_.head_dim /
                       (kernel_.causal ? 2 : 1);
    const auto batch = static_cast<std::int64_t>(std::max(1.0, kPowerFlops / one));
    add(Purpose::power, batch, length, length, kHeads, kHeads);
  }

  void decode() {
    add(Purpose::costs, 1, 1, 1024, 12, 4);
    add(Purpose::costs, 1, 1, 4096, 40, 8);
    add(Purpose::costs, 2, 1, 8192, 12, 12);
    add(Purpose::costs, 1, 1, 16384, 40, 40);
    add(Purpose::costs, 4, 1, 16384, 24, 24);
  }

  const Kernel& kernel_;
  double sms_;
  std::vector<TuneCall>& calls_;
};

}  // namespace

Problem TuneCall::problem() const {
  return {.dtype = bf16,
          .num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .mask = mask};
}

std::string TuneCall::str() const {
  return fmt::format("B{} {}x{}, heads {}/{} x {}{}", batch, queries, keys, num_heads, num_kv_heads,
                     head_dim, causal() ? ", causal" : "");
}

std::vector<TuneCall> tune_calls(int multiprocessors) {
  std::vector<TuneCall> calls;
  for (const Kernel& kernel : kKernels) Planner(kernel, multiprocessors, calls).plan();
  return calls;
}

std::vector<cost::MeasuredShape> exhaustive_shapes() {
  // What video diffusion and its text encoders call; larger calls differ by their kernels' speed
  // alone, which the constants tell.
  constexpr double kMostFlops = 1.2e12;
  struct Heads {
    int q, kv;
  };
  constexpr Heads kHeads[] = {{12, 12}, {12, 4}, {16, 16}, {24, 24}, {40, 40}, {40, 8}};
  std::vector<cost::MeasuredShape> shapes;
  for (const std::int64_t batch : {1, 2, 4, 8, 16, 32}) {
    for (const std::int64_t queries : {1, 16, 64, 128, 256, 512, 1024, 2048, 4096}) {
      for (const std::int64_t keys : {77, 256, 512, 1024, 2048, 4096, 8192}) {
        for (const auto& [q, kv] : kHeads) {
          for (const Mask mask : {Mask::none, Mask::causal}) {
            if (mask == Mask::causal && queries != keys) continue;
            const double flops = 4.0 * 128 * static_cast<double>(batch * queries * keys) * q;
            if (flops > kMostFlops) continue;
            shapes.push_back({.dtype = bf16,
                              .mask = mask,
                              .batch = batch,
                              .queries = queries,
                              .keys = keys,
                              .num_heads = q,
                              .num_kv_heads = kv,
                              .head_dim = 128});
          }
        }
      }
    }
  }
  return shapes;
}

TuneCall call_of(const cost::MeasuredShape& shape, const std::string& backend) {
  return {.backend = backend,
          .kernel = backend,
          .purpose = Purpose::costs,
          .mask = shape.mask,
          .batch = shape.batch,
          .queries = shape.queries,
          .keys = shape.keys,
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim};
}

}  // namespace batten::tools
