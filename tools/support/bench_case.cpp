#include "support/bench_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "support/exit_code.hpp"
#include "support/options.hpp"

namespace batten::tools {
namespace {

constexpr int kDefaultRounds = 15;  // what a ratio's 95 % interval needs
constexpr int kMaxHeadSize = 256;

template <class... Args>
[[noreturn]] void usage(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format(format, std::forward<Args>(args)...));
}

void check_at_least_one(const char* option, std::int64_t value) {
  if (value < 1) usage("{}: {} is less than 1", option, value);
}

void check_list(const char* option, const std::vector<std::int64_t>& values) {
  if (values.empty()) usage("{}: give at least one value", option);
  for (const std::int64_t value : values) check_at_least_one(option, value);
}

Scope parse_scope(const std::string& text) {
  for (const Scope scope : {Scope::call, Scope::graph, Scope::sustained}) {
    if (text == name_of(scope)) return scope;
  }
  usage("--scope: '{}' is none of call, graph, sustained", text);
}

}  // namespace

void check_options(BenchOptions& o) {
  check_list("--batch-size", o.batch_sizes);
  check_list("--query-length", o.query_lengths);
  check_list("--kv-length", o.kv_lengths);
  check_at_least_one("--warmups", o.warmups);
  check_at_least_one("--repeats", o.repeats);
  check_at_least_one("--num-heads", o.num_heads);
  check_at_least_one("--num-kv-heads", o.num_kv_heads);
  if (o.head_size < 8 || o.head_size > kMaxHeadSize || o.head_size % 8 != 0)
    usage("--head-size: {} is no multiple of 8 from 8 to {}", o.head_size, kMaxHeadSize);
  if (o.num_heads % o.num_kv_heads != 0)
    usage("--num-heads: {} is no multiple of --num-kv-heads {}", o.num_heads, o.num_kv_heads);
  if (o.rounds < 0 || o.rounds > o.repeats)
    usage("--rounds: {} is not from 1 to --repeats ({})", o.rounds, o.repeats);
  if (o.sets < 0) usage("--sets: {} is less than 1", o.sets);
  if (!(o.seconds > 0)) usage("--seconds: {} is not above 0", o.seconds);
  if (o.output.empty()) usage("--output: the path is empty");
  o.dtype = parse_dtype(o.dtype_name);
  o.scope = parse_scope(o.scope_name);
  if (o.rounds == 0) o.rounds = std::min(o.repeats, kDefaultRounds);
  if (o.causal) {
    const std::set<std::int64_t> q(o.query_lengths.begin(), o.query_lengths.end());
    const std::set<std::int64_t> kv(o.kv_lengths.begin(), o.kv_lengths.end());
    if (q != kv) {
      usage(
          "--causal: --query-length and --kv-length must list the same lengths, of which equal "
          "pairs are run");
    }
  }
  const std::set<std::string> unique(o.backends.begin(), o.backends.end());
  if (unique.size() != o.backends.size()) usage("--backends: a backend is named twice");
}

std::vector<BenchCase> cases_of(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  for (const std::int64_t batch : options.batch_sizes) {
    for (const std::int64_t q : options.query_lengths) {
      for (const std::int64_t kv : options.kv_lengths) {
        if (!options.causal || q == kv) cases.push_back({batch, q, kv});
      }
    }
  }
  return cases;
}

double flops_of(const BenchOptions& options, const BenchCase& shape) {
  const double full = 4.0 * static_cast<double>(shape.batch) * static_cast<double>(shape.q) *
                      static_cast<double>(shape.kv) * options.num_heads * options.head_size;
  return options.causal ? full / 2 : full;
}

double elements_of(const BenchOptions& options, std::int64_t batch, std::int64_t rows, int heads) {
  return static_cast<double>(batch) * static_cast<double>(rows) * heads * options.head_size;
}

double bytes_of(const BenchOptions& options, const BenchCase& shape) {
  const double elements = elements_of(options, shape.batch, shape.q, options.num_heads) +
                          elements_of(options, shape.batch, shape.kv, options.num_kv_heads);
  return 2 * elements * static_cast<double>(size_of(options.dtype));
}

}  // namespace batten::tools
