#include "support/bench_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "support/receipt.hpp"

namespace batten::tools {
namespace {

// Four significant digits, without an exponent.
std::string ms_text(double ms) {
  const int digits =
      ms > 0 ? std::clamp(3 - static_cast<int>(std::floor(std::log10(ms))), 0, 5) : 4;
  return fmt::format("{:.{}f}", ms, digits);
}

double tflops(const BenchResult& result) {
  return result.flops / (median(result.measured.samples_ms) * 1e9);
}

std::vector<Table::Column> columns(const BenchOptions& options) {
  std::size_t widest = 7;
  for (const std::string& backend : options.backends) widest = std::max(widest, backend.size());
  std::vector<Table::Column> c{{"batch", Align::right, 5},     {"q", Align::right, 6},
                               {"kv", Align::right, 6},        {"backend", Align::left, widest},
                               {"median ms", Align::right, 9}, {"p20", Align::right, 8},
                               {"p80", Align::right, 8},       {"TFLOP/s", Align::right, 8}};
  if (options.check) c.push_back({"rel error", Align::right, 9});
  return c;
}

std::vector<Table::Cell> shape_cells(const BenchCase& shape) {
  return {std::to_string(shape.batch), std::to_string(shape.q), std::to_string(shape.kv)};
}

Json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

Json interval_json(const std::optional<MedianInterval>& interval) {
  if (!interval) return {};
  return {{"median", interval->median}, {"low", interval->low}, {"high", interval->high}};
}

Json case_json(const BenchOptions& o, const std::string& backend, const BenchCase& shape) {
  return {{"backend", backend},       {"batch_size", shape.batch}, {"query_length", shape.q},
          {"kv_length", shape.kv},    {"num_heads", o.num_heads},  {"num_kv_heads", o.num_kv_heads},
          {"head_size", o.head_size}, {"dtype", o.dtype_name},     {"causal", o.causal}};
}

Json result_json(const BenchReport& report, const BenchResult& result) {
  const Measurement& m = result.measured;
  Json j = case_json(report.options, result.backend, result.shape);
  j["median_ms"] = median(m.samples_ms);
  j["p20_ms"] = percentile(m.samples_ms, 0.2);
  j["p80_ms"] = percentile(m.samples_ms, 0.8);
  j["tflops"] = tflops(result);
  j["rel_error"] = number_or_null(result.rel_error);
  j["speedup"] = interval_json(result.speedup);
  j["host_us"] = number_or_null(m.host_us);
  j["overhead_percent"] = number_or_null(overhead_percent(result, report.device));
  j["calls_per_sample"] = m.calls_per_sample;
  j["input_sets"] = result.sets;
  if (m.sustained) {
    j["sm_clock_mhz"] = number_or_null(m.sustained->sm_clock_mhz);
    j["watts"] = number_or_null(m.sustained->watts);
    j["joules_per_call"] = number_or_null(m.sustained->joules_per_call);
  }
  j["receipt"] = receipt_json(m.receipt);
  j["samples_ms"] = m.samples_ms;
  return j;
}

std::string speedups_text(const BenchReport& report) {
  std::vector<Table::Column> columns{{"batch", Align::right},    {"q", Align::right},
                                     {"kv", Align::right},       {"backend"},
                                     {"speed-up", Align::right}, {"95 % interval"}};
  Table table(columns);
  bool any = false;
  for (const BenchResult& result : report.results) {
    if (!result.speedup) continue;
    any = true;
    const MedianInterval& s = *result.speedup;
    std::vector<Table::Cell> row = shape_cells(result.shape);
    row.emplace_back(result.backend);
    row.emplace_back(fmt::format("{:.3f}x", s.median),
                     s.low > 1 ? Color::green : (s.high < 1 ? Color::red : Color::none));
    row.emplace_back(fmt::format("{:.3f} to {:.3f}", s.low, s.high));
    table.add(std::move(row));
  }
  if (!any) return "";
  return fmt::format("\nspeed-up over {} (median of {} interleaved rounds)\n{}", report.first,
                     report.options.rounds, table.str());
}

// Largest host time of each backend over the cases.
std::string host_text(const BenchReport& report) {
  std::string text;
  for (const std::string& backend : report.options.backends) {
    std::optional<double> host;
    std::optional<double> percent;
    for (const BenchResult& result : report.results) {
      if (result.backend != backend || !result.measured.host_us) continue;
      host = std::max(host.value_or(0), *result.measured.host_us);
      if (const auto p = overhead_percent(result, report.device))
        percent = std::max(percent.value_or(0), *p);
    }
    if (!host) continue;
    text += fmt::format("{}{} {:.1f} us", text.empty() ? "" : ", ", backend, *host);
    if (percent) text += fmt::format(" ({:.2g} %)", *percent);
  }
  if (text.empty()) return "";
  return fmt::format("\n{}, at most: {}\n",
                     report.device.is_cpu() ? "batten's own time in a call" : "host time of a call",
                     text);
}

}  // namespace

MedianInterval speedup_of(const Measurement& first, const Measurement& other) {
  std::vector<double> ratios;
  const std::size_t rounds = std::min(first.round_ms.size(), other.round_ms.size());
  for (std::size_t i = 0; i < rounds; ++i) ratios.push_back(first.round_ms[i] / other.round_ms[i]);
  return median_interval(std::move(ratios));
}

std::optional<double> overhead_percent(const BenchResult& result, Device device) {
  // On a GPU the host works while the device does; what a call costs there shows only beside the
  // raw call of the backend.
  if (!device.is_cpu() || !result.measured.host_us) return {};
  const double total_us = median(result.measured.samples_ms) * 1e3;
  return 100 * *result.measured.host_us / std::max(total_us - *result.measured.host_us, 1e-3);
}

ResultLines::ResultLines(const BenchOptions& options)
    : check_(options.check), table_(columns(options)) {}

std::string ResultLines::heading() const { return table_.heading(); }

std::string ResultLines::line(const BenchResult& result) const {
  const std::vector<double>& ms = result.measured.samples_ms;
  std::vector<Table::Cell> row = shape_cells(result.shape);
  row.emplace_back(result.backend);
  row.emplace_back(ms_text(median(ms)), Color::bold);
  row.emplace_back(ms_text(percentile(ms, 0.2)));
  row.emplace_back(ms_text(percentile(ms, 0.8)));
  row.emplace_back(fmt::format("{:.4g}", tflops(result)));
  if (check_) row.emplace_back(result.rel_error ? fmt::format("{:.1e}", *result.rel_error) : "-");
  return table_.row(row);
}

std::string ResultLines::line(const BenchSkip& skip) const {
  std::vector<Table::Cell> row = shape_cells(skip.shape);
  row.emplace_back(skip.backend);
  row.emplace_back("not served: " + one_line(skip.reason), Color::yellow);
  return table_.row(row);
}

std::string summary_text(const BenchReport& report) {
  return speedups_text(report) + host_text(report);
}

Json report_json(const BenchReport& report) {
  const BenchOptions& o = report.options;
  Json j{{"environment", report.environment},
         {"timing_scope", name_of(o.scope)},
         {"warmups", o.warmups},
         {"repeats", o.repeats},
         {"rounds", o.rounds},
         {"device", report.device.str()},
         {"command", report.command},
         {"date", report.started},
         {"complete", report.complete},
         {"first_backend", report.first}};
  if (o.scope == Scope::sustained) j["seconds"] = o.seconds;
  j["results"] = Json::array();
  for (const BenchResult& result : report.results)
    j["results"].push_back(result_json(report, result));
  j["skipped"] = Json::array();
  for (const BenchSkip& skip : report.skipped) {
    Json entry = case_json(o, skip.backend, skip.shape);
    entry["reason"] = skip.reason;
    j["skipped"].push_back(std::move(entry));
  }
  return j;
}

}  // namespace batten::tools
