// The benchmark's results: the lines on stdout and the JSON file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "support/bench_case.hpp"
#include "support/bench_runner.hpp"
#include "support/environment.hpp"
#include "support/statistics.hpp"
#include "support/table.hpp"

namespace batten::tools {

struct BenchResult {
  std::string backend;
  BenchCase shape;
  std::size_t sets = 0;
  double flops = 0;
  Measurement measured;
  std::optional<double> rel_error;
  // Time of the first backend over this one's, of the same rounds; nothing for the first itself.
  std::optional<MedianInterval> speedup;
};

// A backend that did not serve a case, and why.
struct BenchSkip {
  std::string backend;
  BenchCase shape;
  std::string reason;
};

struct BenchReport {
  BenchOptions options;
  Device device;
  Json environment;
  std::string command;
  std::string started;  // UTC
  std::string first;    // the backend that speed-ups are against
  bool complete = true;
  std::vector<BenchResult> results;
  std::vector<BenchSkip> skipped;
};

// Median over the rounds of first / other.
MedianInterval speedup_of(const Measurement& first, const Measurement& other);

// The part of a call's time that the host spends in batten, in percent; only where it is known.
std::optional<double> overhead_percent(const BenchResult& result, Device device);

// A line a result, printed as they come.
class ResultLines {
 public:
  explicit ResultLines(const BenchOptions& options);
  std::string heading() const;
  std::string line(const BenchResult& result) const;
  std::string line(const BenchSkip& skip) const;

 private:
  bool check_;
  Table table_;
};

// Speed-ups against the first backend, and what the API itself costs.
std::string summary_text(const BenchReport& report);

Json report_json(const BenchReport& report);

}  // namespace batten::tools
