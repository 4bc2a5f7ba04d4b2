// `batten tune`: measures what the cost model of `auto` needs to know of this GPU, and keeps it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <batten/batten.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "cost/document.hpp"
#include "support/console.hpp"
#include "support/environment.hpp"
#include "support/exit_code.hpp"
#include "support/interrupt.hpp"
#include "support/options.hpp"
#include "support/output.hpp"
#include "support/progress.hpp"
#include "support/table.hpp"
#include "support/tune_runner.hpp"
#include "verbs.hpp"

namespace batten::tools {
namespace {

struct TuneOptions {
  std::string device;
  std::string output;
  bool exhaustive = false;
  bool json = false;
};

// The variables that have `native` take other kernels than the card's own.
constexpr const char* kOtherKernels[] = {"BATTEN_NATIVE_ARCH", "BATTEN_SMEM_LIMIT"};

// What `auto` reads, and the times of whole calls, count as those of the card's own kernels.
void check_settings(const TuneOptions& o) {
  if (!o.output.empty() && !o.exhaustive) return;
  for (const char* const name : kOtherKernels) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    throw UsageError(fmt::format("unset {}: {} would be kept as those of the card's own kernels{}",
                                 name, o.exhaustive ? "calls" : "constants",
                                 o.exhaustive ? "" : ", or give -o to keep them elsewhere"));
  }
}

// A GPU, or the reason why there is none.
Device gpu_of(const TuneOptions& o, const LibraryInfo& info) {
  check_settings(o);
  const Device device = o.device.empty() ? Device::cuda(0) : parse_device(o.device);
  if (device.is_cpu())
    throw UsageError("--device: cpu has nothing to tune, auto has one backend there; name a GPU");
  if (info.num_gpus == 0) {
    fail(ErrorCode::Unavailable, "{}: {}; batten tune measures a GPU, run it where one is",
         device.str(), info.json.value("cuda", Json::object()).value("reason", "no GPU was found"));
  }
  require_device(device, "", info);
  return device;
}

// The card as the library sees it, from the answer to any call.
Json card_of(Device device) {
  return explain_call({.backend = "",
                       .kernel = "",
                       .purpose = Purpose::costs,
                       .mask = Mask::none,
                       .batch = 1,
                       .queries = 1,
                       .keys = 1,
                       .num_heads = 1,
                       .num_kv_heads = 1},
                      device)["card"];
}

std::string number(double value) { return value == 0 ? "" : fmt::format("{:.3g}", value); }

std::string kernels_text(const std::vector<TunedKernel>& kernels) {
  Table table({{"kernel"},
               {"launch us", Align::right},
               {"tile us", Align::right},
               {"block us", Align::right},
               {"part us", Align::right},
               {"merge us", Align::right},
               {"TFLOP/s", Align::right},
               {"GB/s", Align::right},
               {"error %", Align::right},
               {"worst %", Align::right}});
  for (const TunedKernel& k : kernels) {
    const cost::Constants& c = k.fit.constants;
    table.add({c.str(), number(c.launch_us), number(c.tile_us), number(c.block_us),
               number(c.part_us), number(c.merge_us), number(c.tflops), number(c.gbps),
               fmt::format("{:.1f}", 100 * k.fit.median_error),
               fmt::format("{:.1f}", 100 * k.fit.worst_error)});
  }
  return table.str();
}

std::string samples_text(const TunedKernel& kernel) {
  Table table({{kernel.fit.constants.str()},
               {"measured us", Align::right},
               {"fitted us", Align::right},
               {"error %", Align::right}});
  for (std::size_t i = 0; i < kernel.samples.size(); ++i) {
    const double measured = kernel.samples[i].measured_us;
    const double fitted = kernel.fit.fitted_us[i];
    table.add({kernel.samples[i].call.str(), fmt::format("{:.1f}", measured),
               fmt::format("{:.1f}", fitted),
               fmt::format("{:+.1f}", 100 * (fitted / measured - 1))});
  }
  return table.str();
}

Json samples_json(const std::vector<TunedKernel>& kernels) {
  Json all = Json::array();
  for (const TunedKernel& k : kernels) {
    for (std::size_t i = 0; i < k.samples.size(); ++i) {
      const TuneSample& s = k.samples[i];
      all.push_back({{"kernel", k.fit.constants.str()},
                     {"batch_size", s.call.batch},
                     {"query_length", s.call.queries},
                     {"kv_length", s.call.keys},
                     {"num_heads", s.call.num_heads},
                     {"num_kv_heads", s.call.num_kv_heads},
                     {"launches", s.work.launches},
                     {"tiles", s.work.starts},
                     {"key_blocks", s.work.blocks},
                     {"parts", s.work.parts},
                     {"merges", s.work.merges},
                     {"measured_us", s.measured_us},
                     {"fitted_us", k.fit.fitted_us[i]}});
    }
  }
  return all;
}

class Tune {
 public:
  Tune(const TuneOptions& options, const Console& console)
      : o_(options), console_(console), info_(library_info()), device_(gpu_of(options, info_)) {}

  int run() {
    card_ = card_of(device_);
    name_output();
    prepare_output(output_);
    TuneTimer timer(device_);
    sources_ = {
        .work = [&](const TuneCall& call) { return work_in(explain_call(call, device_), call); },
        .time = [&](const TuneCall& call) { return timer(call); },
        .progress = {}};
    const std::vector<TunedKernel> kernels = measure_kernels();
    for (const auto& [kernel, reason] : timer.refusals())
      console_.warning("{}: not all calls were measured: {}", kernel, reason);
    if (kernels.empty()) {
      fail(ErrorCode::Unavailable, "no backend with constants runs on {}; `batten info` says why",
           device_.str());
    }
    cost::Document document = document_of(kernels);
    if (o_.exhaustive) document.measured = measure_grid();
    const std::string text = cost::to_json(document);
    // What was written must be what is read: a fault here would only show in another process.
    static_cast<void>(cost::parse_document(text));
    write_text(output_, text);
    report(kernels, document, text);
    return kExitOk;
  }

 private:
  void name_output() {
    output_ = o_.output;
    if (output_.empty() && card_["file"].is_string()) output_ = card_["file"].get<std::string>();
    if (output_.empty()) {
      fail(ErrorCode::InvalidArgument,
           "there is no folder to keep the constants in: set HOME or BATTEN_CACHE_DIR, or give -o");
    }
  }

  std::vector<TunedKernel> measure_kernels() {
    const std::vector<TuneCall> calls = tune_calls(card_.value("multiprocessors", 1));
    Progress bar(calls.size());
    sources_.progress = [&](std::size_t done, std::size_t, const TuneCall& call) {
      bar.update(done, fmt::format("{} {}", call.backend, call.str()));
    };
    return fit_kernels(measure_calls(calls, sources_));
  }

  std::vector<cost::Measured> measure_grid() {
    std::vector<std::string> backends;
    for (const BackendInfo& backend : info_.backends) {
      const BackendState* state = backend.on(device_);
      if (backend.automatic && state != nullptr && state->available)
        backends.push_back(backend.name);
    }
    const std::vector<cost::MeasuredShape> shapes = exhaustive_shapes();
    Progress bar(shapes.size());
    sources_.progress = [&](std::size_t done, std::size_t, const TuneCall& call) {
      bar.update(done, call.str());
    };
    return measure_shapes(
        shapes, backends, [&](const TuneCall& call) { return explain_call(call, device_); },
        sources_);
  }

  cost::Document document_of(const std::vector<TunedKernel>& kernels) const {
    cost::Document d;
    d.card = {.name = card_.value("name", ""),
              .arch = card_.value("arch", 0),
              .multiprocessors = card_.value("multiprocessors", 0),
              .clock_mhz = card_.value("clock_mhz", 0.0),
              .memory_gbps = card_.value("memory_gbps", 0.0)};
    const Json environment = environment_json(info_, device_);
    d.origin.emplace_back("date", utc_time());
    d.origin.emplace_back("command",
                          fmt::format("batten tune{}", o_.exhaustive ? " --exhaustive" : ""));
    for (const char* name : kOtherKernels) {
      if (environment["settings"].contains(name))
        d.origin.emplace_back(name, environment["settings"][name].get<std::string>());
    }
    for (const char* name : {"batten", "git", "driver", "cuda", "cudnn"}) {
      if (environment[name].is_string())
        d.origin.emplace_back(name, environment[name].get<std::string>());
    }
    for (const TunedKernel& kernel : kernels) d.kernels.push_back(kernel.fit.constants);
    return d;
  }

  void report(const std::vector<TunedKernel>& kernels, const cost::Document& document,
              const std::string& text) const {
    if (o_.json) {
      Json json = Json::parse(text);
      json["file"] = output_;
      json["samples"] = samples_json(kernels);
      fmt::print("{}\n", json.dump(1));
      return;
    }
    fmt::print("{} ({}, {} multiprocessors)\n\n", device_.str(), document.card.name,
               document.card.multiprocessors);
    for (const TunedKernel& kernel : kernels) fmt::print("{}\n", samples_text(kernel));
    fmt::print("{}\n", kernels_text(kernels));
    if (o_.exhaustive) fmt::print("{} calls measured on each backend\n", document.measured.size());
    fmt::print("wrote {}{}\n", output_,
               o_.output.empty() ? "; auto uses it from the next process on" : "");
  }

  const TuneOptions& o_;
  const Console& console_;
  LibraryInfo info_;
  Device device_;
  Json card_;
  std::string output_;
  TuneSources sources_;
};

}  // namespace

Verb add_tune(CLI::App& parent) {
  CLI::App* app =
      parent.add_subcommand("tune", "Measure this GPU, so that `auto` chooses by its own times");
  auto o = std::make_shared<TuneOptions>();
  app->add_option("--device", o->device, "cuda or cuda:N [the first GPU]")->type_name("DEVICE");
  app->add_flag("--exhaustive", o->exhaustive,
                "Also measure every backend on a grid of calls, which `auto` then takes as they "
                "are; takes much longer");
  app->add_option("-o,--output", o->output,
                  "JSON file for the constants [the card's, in the cache folder, which `auto` "
                  "reads]")
      ->type_name("FILE");
  app->add_flag("--json", o->json, "Print JSON: the constants and every measurement");
  app->footer(R"(
Examples:
  batten tune
  batten tune --device cuda:1 --exhaustive
  batten tune -o h200.json --json

Run nothing else on the GPU meanwhile. Ctrl-C leaves what was there.)");
  return {app, [o](const Console& console) { return Tune(*o, console).run(); }};
}

}  // namespace batten::tools
