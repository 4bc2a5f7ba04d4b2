#include "support/verify_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "support/table.hpp"

namespace batten::tools {
namespace {

using conformance::CaseResult;
using conformance::Status;

std::string group_of(const CaseResult& result) {
  return result.name.substr(0, result.name.find('/'));
}

struct Counts {
  std::size_t passed = 0, failed = 0, refused = 0, skipped = 0;

  void add(Status status) {
    switch (status) {
      case Status::passed:
        ++passed;
        break;
      case Status::failed:
        ++failed;
        break;
      case Status::refused:
        ++refused;
        break;
      case Status::skipped:
        ++skipped;
        break;
    }
  }
};

// "12 ok", "1 of 12 FAILED", with what was legally refused.
Table::Cell cell_of(const Counts& c) {
  const std::size_t run = c.passed + c.failed;
  std::string text;
  if (c.failed > 0) {
    text = fmt::format("{} of {} FAILED", c.failed, run);
  } else if (run > 0) {
    text = fmt::format("{} ok", run);
  }
  if (c.refused > 0) text += fmt::format("{}{} refused", text.empty() ? "" : ", ", c.refused);
  if (text.empty()) return c.skipped > 0 ? "skipped" : "-";
  return {text, c.failed > 0 ? Color::red : (run > 0 ? Color::green : Color::none)};
}

Counts counts_of(const VerifySubject& subject, const std::string& group) {
  Counts counts;
  for (const CaseResult& result : subject.results) {
    if (group.empty() || group_of(result) == group) counts.add(result.status);
  }
  return counts;
}

std::string title_of(const VerifySubject& subject) {
  return fmt::format("{} ({})", subject.backend, subject.device.str());
}

std::string table_text(const VerifyReport& report) {
  std::vector<std::string> groups;
  for (const VerifySubject& subject : report.subjects) {
    for (const CaseResult& result : subject.results) {
      const std::string group = group_of(result);
      if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    }
  }
  std::vector<Table::Column> columns{{"cases"}};
  for (const VerifySubject& subject : report.subjects) columns.push_back({title_of(subject)});
  Table table(columns);
  for (const std::string& group : groups) {
    std::vector<Table::Cell> row{group};
    for (const VerifySubject& subject : report.subjects)
      row.push_back(cell_of(counts_of(subject, group)));
    table.add(std::move(row));
  }
  std::vector<Table::Cell> all{Table::Cell("all", Color::bold)};
  for (const VerifySubject& subject : report.subjects)
    all.push_back(cell_of(counts_of(subject, "")));
  table.add(std::move(all));
  return table.str();
}

std::string failures_text(const VerifyReport& report) {
  std::string text;
  for (const VerifySubject& subject : report.subjects) {
    for (const CaseResult& result : subject.results) {
      if (result.status != Status::failed) continue;
      text += fmt::format("{} {}: {}\n", paint(Color::red, "FAILED"), title_of(subject),
                          one_line(result.str()));
    }
  }
  return text;
}

// Why forms refuse cases, each reason once: without it nobody sees what was not proved.
std::string refusals_text(const VerifyReport& report) {
  std::string text;
  for (const VerifySubject& subject : report.subjects) {
    if (subject.backend.find(':') == std::string::npos) continue;
    std::map<std::string, std::size_t> reasons;
    for (const CaseResult& result : subject.results) {
      if (result.status == Status::refused) ++reasons[result.reason];
    }
    for (const auto& [reason, count] : reasons)
      text += fmt::format("refused {}: {} cases: {}\n", title_of(subject), count, one_line(reason));
  }
  return text;
}

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json case_json(const VerifySubject& subject, const CaseResult& result) {
  Json violations = Json::array();
  for (const conformance::Violation& v : result.violations)
    violations.push_back({{"check", conformance::name_of(v.check)}, {"what", v.what}});
  return {{"backend", subject.backend},
          {"device", subject.device.str()},
          {"name", result.name},
          {"status", conformance::name_of(result.status)},
          {"reason", result.reason},
          {"violations", std::move(violations)},
          {"rel_error", number_or_null(result.bounds.rel_error)},
          {"worst_row_of_bound", number_or_null(result.bounds.row.ratio())},
          {"kernel", result.receipt.kernel()},
          {"form", result.receipt.form()},
          {"seconds", result.seconds}};
}

}  // namespace

std::size_t VerifySubject::count(Status status) const {
  return static_cast<std::size_t>(std::ranges::count(results, status, &CaseResult::status));
}

std::size_t VerifyReport::count(Status status) const {
  std::size_t n = 0;
  for (const VerifySubject& subject : subjects) n += subject.count(status);
  return n;
}

std::string verify_text(const VerifyReport& report) {
  const std::string failures = refusals_text(report) + failures_text(report);
  return fmt::format(
      "{}{}{}\nverify {}: {} passed, {} failed, {} refused, {} skipped in {:.1f} s{}\n",
      table_text(report), failures.empty() ? "" : "\n", failures, report.set,
      report.count(Status::passed), report.count(Status::failed), report.count(Status::refused),
      report.count(Status::skipped), report.seconds, report.complete ? "" : " (interrupted)");
}

Json verify_json(const VerifyReport& report) {
  Json j{{"environment", report.environment},
         {"date", report.started},
         {"set", report.set},
         {"complete", report.complete},
         {"seconds", report.seconds},
         {"passed", report.count(Status::passed)},
         {"failed", report.count(Status::failed)},
         {"refused", report.count(Status::refused)},
         {"skipped", report.count(Status::skipped)}};
  j["cases"] = Json::array();
  for (const VerifySubject& subject : report.subjects) {
    for (const CaseResult& result : subject.results)
      j["cases"].push_back(case_json(subject, result));
  }
  return j;
}

}  // namespace batten::tools
