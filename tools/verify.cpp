// `batten verify`: the conformance suite on every available backend.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <batten/batten.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cases.hpp"
#include "runner.hpp"
#include "served.hpp"
#include "subject.hpp"
#include "support/console.hpp"
#include "support/environment.hpp"
#include "support/exit_code.hpp"
#include "support/interrupt.hpp"
#include "support/options.hpp"
#include "support/output.hpp"
#include "support/progress.hpp"
#include "support/verify_report.hpp"
#include "verbs.hpp"

namespace batten::tools {
namespace {

using conformance::Case;
using conformance::CaseResult;
using conformance::Served;
using conformance::Set;

struct VerifyOptions {
  std::vector<std::string> backends;
  std::string device;
  std::string json;
  bool quick = false;
  bool full = false;
  int threads = 0;
};

// A backend on a device, and its cases.
struct Entry {
  std::string backend;
  Device device;
  Served served;
  std::vector<Case> cases;
};

// What the backend must serve. A form may lack a part of it, or all of it on this machine.
Served served_of(const std::string& backend, const Served& row) {
  Served served = row;
  served.may_refuse_anything = row.name != backend;
  return served;
}

// The CPU, and the first GPU where there is one.
std::vector<Device> chosen_devices(const VerifyOptions& options, const LibraryInfo& info) {
  if (!options.device.empty()) {
    const Device device = parse_device(options.device);
    require_device(device, options.backends.empty() ? "" : options.backends.front(), info);
    return {device};
  }
  std::vector<Device> devices{Device::cpu()};
  if (info.num_gpus > 0) devices.push_back(Device::cuda(0));
  return devices;
}

// A backend that is named but runs on none of the devices ends the run, with the library's reason
// for the device that it is made for.
[[noreturn]] void not_available(const std::string& backend, const std::vector<Device>& devices,
                                const LibraryInfo& info) {
  const Served* served = conformance::find_served(backend);
  const bool misplaced = served != nullptr && !served->on(devices.back().type);
  if (misplaced && devices.back().is_cpu()) require_device(Device::cuda(0), backend, info);
  const auto reason = conformance::why_unavailable(backend, devices.back());
  throw Error(ErrorCode::Unavailable,
              reason.value_or(fmt::format("backend '{}' does not run on {}; name another --device",
                                          backend, devices.back().str())));
}

std::vector<Entry> entries_of(const VerifyOptions& options, const LibraryInfo& info) {
  const std::vector<Device> devices = chosen_devices(options, info);
  const bool named = !options.backends.empty();
  std::vector<Entry> entries;
  for (const std::string& backend : named ? options.backends : info.backend_names()) {
    check_backend_name("--backend", backend, info);
    if (backend == "auto") throw UsageError("--backend: auto is a choice, not a backend; name one");
    const Served* served = conformance::find_served(backend);
    const std::size_t before = entries.size();
    for (const Device device : devices) {
      if (served == nullptr || !served->on(device.type)) continue;
      if (conformance::why_unavailable(backend, device)) continue;
      entries.push_back(
          {backend, device, served_of(backend, *served),
           conformance::cases(options.full ? Set::full : Set::quick, *served, device.type)});
    }
    if (named && entries.size() == before) not_available(backend, devices, info);
  }
  if (entries.empty()) {
    throw Error(
        ErrorCode::Unavailable,
        fmt::format("no backend is available on {}; `batten info` says why", devices.back().str()));
  }
  return entries;
}

// `reference` cannot vouch for itself: on the CPU its other, independent formulation does, on a GPU
// the CPU's does.
conformance::Oracle oracle_of(const Entry& entry) {
  conformance::Oracle oracle;  // on the CPU
  if (entry.backend == "reference") {
    oracle.backend = "reference:online";
  } else if (!conformance::why_unavailable("reference", entry.device)) {
    oracle.device = entry.device;
  }
  return oracle;
}

CaseResult run_one(const Entry& entry, const Case& one, conformance::Subject& subject) {
  const conformance::Oracle oracle = oracle_of(entry);
  conformance::PreparedCase prepared(one, oracle);
  return conformance::run_case(prepared, subject, &entry.served);
}

int run_verify(const VerifyOptions& options, const Console& console) {
  const LibraryInfo info = library_info();
  const std::vector<Entry> entries = entries_of(options, info);
  if (!options.json.empty()) prepare_output(options.json);

  VerifyReport report;
  report.set = options.full ? "full" : "quick";
  report.environment = environment_json(info, entries.back().device);
  report.started = utc_time();
  std::size_t total = 0;
  for (const Entry& entry : entries) total += entry.cases.size();
  const auto start = std::chrono::steady_clock::now();
  {
    Progress progress(total);
    std::size_t done = 0;
    for (const Entry& entry : entries) {
      report.subjects.push_back({entry.backend, entry.device, {}});
      conformance::BackendSubject subject(entry.backend, entry.device, options.threads);
      for (const Case& one : entry.cases) {
        if (interrupted()) break;
        progress.update(done++,
                        fmt::format("{} on {}: {}", entry.backend, entry.device.str(), one.name));
        CaseResult result = run_one(entry, one, subject);
        if (result.status == conformance::Status::failed)
          console.info("{} on {}: {}", entry.backend, entry.device.str(), result.str());
        report.subjects.back().results.push_back(std::move(result));
      }
    }
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.complete = !interrupted();
  fmt::print("{}", verify_text(report));
  if (!options.json.empty()) {
    write_text(options.json, verify_json(report).dump(1) + "\n");
    fmt::print("wrote {}\n", options.json);
  }
  const std::size_t failed = report.count(conformance::Status::failed);
  if (failed > 0)
    console.error(
        fmt::format("{} of {} cases failed; the lines above say which and why", failed, total));
  if (interrupted()) {
    console.error("interrupted; the table holds the cases that were run");
    return kExitInterrupted;
  }
  if (failed > 0) return kExitVerificationFailed;
  for (const VerifySubject& subject : report.subjects) {
    if (subject.count(conformance::Status::passed) > 0) continue;
    console.error(
        fmt::format("{} on {} serves none of the cases, see above; name another --backend",
                    subject.backend, subject.device.str()));
    return kExitUnavailable;
  }
  return kExitOk;
}

}  // namespace

Verb add_verify(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "verify", "Prove every available backend against the float64 reference");
  auto o = std::make_shared<VerifyOptions>();
  app->add_option("--backend", o->backends, "Backends to prove [all that are available]")
      ->expected(1, -1)
      ->type_name("NAME...");
  app->add_option("--device", o->device,
                  "cpu, cuda or cuda:N [cpu, and the first GPU if there is one]")
      ->type_name("DEVICE");
  CLI::Option* quick =
      app->add_flag("--quick", o->quick, "The cases that take seconds (the default)");
  app->add_flag("--full", o->full, "All cases: minutes")->excludes(quick);
  app->add_option("--json", o->json, "Write every case's result to a JSON file")->type_name("FILE");
  add_threads_option(*app, o->threads, kThreadsHelp);
  app->footer(R"(
Examples:
  batten verify
  batten verify --full --backend cpu reference
  batten verify --device cuda:0 --backend cudnn single --json results/verify.json

`reference` is itself proved against a second, independent formulation.
Exit code 5 if a case fails, 4 if a named backend is not available or a form of it serves no case.)");
  return {app, [o](const Console& console) { return run_verify(*o, console); }};
}

}  // namespace batten::tools
