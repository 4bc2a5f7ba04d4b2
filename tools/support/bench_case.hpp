// What `batten bench` measures: the command line's grid, checked, as a list of cases.
#pragma once

#include <batten/types.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace batten::tools {

// How time is taken; see docs/command.md.
enum class Scope {
  call,       // around each call: the published method
  graph,      // replays of a CUDA graph of many calls: GPU time without launch gaps
  sustained,  // loops of seconds, at the power limit
};

constexpr const char* name_of(Scope scope) noexcept {
  switch (scope) {
    case Scope::call:
      return "call";
    case Scope::graph:
      return "graph";
    case Scope::sustained:
      return "sustained";
  }
  return "unknown";
}

struct BenchCase {
  std::int64_t batch = 0;
  std::int64_t q = 0;
  std::int64_t kv = 0;
};

// The command line of `batten bench`, with the published benchmark's defaults.
struct BenchOptions {
  std::vector<std::int64_t> batch_sizes{1, 2, 4, 8};
  std::vector<std::int64_t> query_lengths{256, 1024};
  std::vector<std::int64_t> kv_lengths{4096};
  int num_heads = 12;
  int num_kv_heads = 4;
  int head_size = 128;
  std::string dtype_name = "bfloat16";
  bool causal = false;
  int warmups = 20;
  int repeats = 100;
  int rounds = 0;      // 0: 15, or fewer where there are fewer repeats
  int sets = 0;        // 0: as many as exceed the device's cache
  double seconds = 2;  // of one turn, scope sustained
  std::string scope_name = "call";
  std::string output = "results/bench.json";
  std::vector<std::string> backends;  // empty: all that are available, but `reference`
  std::string device_name;
  int threads = 0;
  bool check = false;

  // Resolved by check_options().
  DType dtype = DType::none;
  Scope scope = Scope::call;
};

// Throws UsageError for what cannot be measured; fills in what follows from the command line.
void check_options(BenchOptions& options);

// The grid in the order batch, query length, key/value length; with causal only equal lengths.
std::vector<BenchCase> cases_of(const BenchOptions& options);

// 4·B·Sq·Skv·Hq·D, halved for causal (whose cases are square).
double flops_of(const BenchOptions& options, const BenchCase& shape);

// Elements of a tensor, and bytes of one input set: q, k, v and the output. Whatever was asked for
// can be counted in them.
double elements_of(const BenchOptions& options, std::int64_t batch, std::int64_t rows, int heads);
double bytes_of(const BenchOptions& options, const BenchCase& shape);

}  // namespace batten::tools
