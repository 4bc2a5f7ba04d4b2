// `batten bench`: times backends on a grid of shapes, in turns, and writes the samples as JSON.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <batten/batten.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/bench_case.hpp"
#include "support/bench_inputs.hpp"
#include "support/bench_memory.hpp"
#include "support/bench_report.hpp"
#include "support/bench_runner.hpp"
#include "support/command_line.hpp"
#include "support/compare.hpp"
#include "support/console.hpp"
#include "support/environment.hpp"
#include "support/exit_code.hpp"
#include "support/interrupt.hpp"
#include "support/options.hpp"
#include "support/output.hpp"
#include "support/progress.hpp"
#include "verbs.hpp"

namespace batten::tools {
namespace {

constexpr std::uint64_t kSeed = 0;
// On the CPU the reference of a larger call takes longer than measuring it: sampled rows from here
// on.
constexpr double kBenchSampleAboveFlops = 2e10;

// Without --backends: all that run on the device, in the order of `auto`; the reference is no
// rival.
std::vector<std::string> default_backends(const LibraryInfo& info, Device device) {
  std::vector<std::string> names;
  for (const BackendInfo& backend : info.backends) {
    const BackendState* state = backend.on(device);
    if (backend.automatic && state != nullptr && state->available) names.push_back(backend.name);
  }
  if (names.empty()) {
    throw Error(ErrorCode::Unavailable,
                fmt::format("no backend is available on {}; `batten info` says why", device.str()));
  }
  return names;
}

class Bench {
 public:
  Bench(BenchOptions options, std::string command, const Console& console)
      : console_(console), named_(!options.backends.empty()) {
    check_options(options);
    const LibraryInfo info = library_info();
    for (const std::string& backend : options.backends)
      check_backend_name("--backends", backend, info);
    report_.device =
        choose_device(options.device_name, options.backends.empty() ? "" : options.backends.front(),
                      options.dtype, info);
    if (report_.device.is_cpu() && options.scope == Scope::graph)
      throw UsageError("--scope graph: graphs need a GPU; use --scope call on the CPU");
    if (options.backends.empty()) options.backends = default_backends(info, report_.device);
    report_.first = options.backends.front();
    report_.environment = environment_json(info, report_.device);
    report_.command = std::move(command);
    report_.started = utc_time();
    report_.options = std::move(options);
  }

  int run() {
    const BenchOptions& options = report_.options;
    const std::vector<BenchCase> cases = cases_of(options);
    check_memory(options, cases, report_.device);
    create_contenders(cases);
    prepare_output(options.output);
    const std::unique_ptr<Timer> timer = make_timer(report_.device);
    fmt::print("{}\n{}", headline(), ResultLines(options).heading());
    std::fflush(stdout);
    const std::exception_ptr failure = measure_all(cases, *timer);
    report_.complete = !interrupted() && failure == nullptr;
    if (!report_.results.empty()) {  // else an earlier file would be replaced by nothing
      save();
      fmt::print("{}\nwrote {}\n", summary_text(report_), options.output);
    }
    if (interrupted()) {
      console_.error(report_.results.empty()
                         ? std::string("interrupted before the first result; nothing was written")
                         : fmt::format("interrupted; {} results up to here are in {}",
                                       report_.results.size(), options.output));
      return kExitInterrupted;
    }
    if (failure != nullptr) std::rethrow_exception(failure);
    if (report_.results.empty() || (named_ && !report_.skipped.empty())) {
      console_.error(
          fmt::format("{} of {} measurements were not served, see above; name other "
                      "--backends or shapes",
                      report_.skipped.size(), report_.skipped.size() + report_.results.size()));
      return kExitUnavailable;
    }
    return kExitOk;
  }

 private:
  std::string headline() const {
    const BenchOptions& o = report_.options;
    const Json& machine = report_.environment[report_.device.is_cpu() ? "cpu" : "gpu"];
    return fmt::format("{} ({}), {}, heads {}/{} x {}{}, scope {}, {} repeats after {} warm-ups",
                       report_.device.str(),
                       machine.is_string() ? machine.get<std::string>() : "unknown", o.dtype_name,
                       o.num_heads, o.num_kv_heads, o.head_size, o.causal ? ", causal" : "",
                       name_of(o.scope), o.repeats, o.warmups);
  }

  // What goes wrong at one shape must not lose the others' results: it is returned.
  std::exception_ptr measure_all(const std::vector<BenchCase>& cases, Timer& timer) {
    Progress progress(cases.size());
    try {
      for (std::size_t i = 0; i < cases.size() && !interrupted(); ++i) {
        const BenchCase& shape = cases[i];
        progress.update(i, fmt::format("batch {} q {} kv {}", shape.batch, shape.q, shape.kv));
        measure_case(shape, kSeed + i * 0x10000, timer, progress);
      }
    } catch (const Interrupted&) {
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  // A named backend that is not available ends the run here; one that does not serve the problem is
  // skipped for every shape.
  void create_contenders(const std::vector<BenchCase>& cases) {
    const BenchOptions& o = report_.options;
    const Problem problem{.dtype = o.dtype,
                          .num_heads = o.num_heads,
                          .num_kv_heads = o.num_kv_heads,
                          .head_dim = o.head_size,
                          .mask = o.causal ? Mask::causal : Mask::none};
    for (const std::string& backend : o.backends) {
      try {
        contenders_.push_back(
            {backend,
             std::make_unique<Attention>(problem, report_.device,
                                         Options{.backend = backend, .num_threads = o.threads})});
      } catch (const Error& error) {
        if (error.code() != ErrorCode::Unsupported || o.backends.size() == 1) throw;
        for (const BenchCase& shape : cases)
          report_.skipped.push_back({backend, shape, error.what()});
        console_.warning("{}", error.what());
      }
    }
  }

  // The contenders that serve this shape; the others are noted.
  std::vector<Contender*> willing(const BenchCase& shape, const BenchInputs& inputs) {
    std::vector<Contender*> list;
    for (Contender& contender : contenders_) {
      try {
        contender.attention->prepare(inputs[0].q, inputs[0].k, inputs[0].v, inputs[0].out,
                                     bench_call(nullptr));
        list.push_back(&contender);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::Unsupported) throw;
        report_.skipped.push_back({contender.name, shape, error.what()});
        fmt::print("{}", ResultLines(report_.options).line(report_.skipped.back()));
      }
    }
    return list;
  }

  void measure_case(const BenchCase& shape, std::uint64_t seed, Timer& timer, Progress& progress) {
    const BenchOptions& options = report_.options;
    const BenchInputs inputs(options, shape, report_.device, seed);
    const std::vector<Contender*> list = willing(shape, inputs);
    std::vector<Measurement> measured = measure(options, list, inputs, report_.device, timer);
    std::optional<ReferenceRows> reference;  // the same for all contenders
    if (options.check && !list.empty() && !interrupted()) {
      const conformance::Case call =
          dense_case(list.front()->attention->problem(), shape.batch, shape.q, shape.kv);
      reference.emplace(call, inputs.first_inputs(),
                        oracle_for(report_.device, kBenchSampleAboveFlops));
    }
    const Measurement* first = nullptr;
    const std::size_t begin = report_.results.size();
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (measured[i].samples_ms.empty()) continue;  // interrupted before its first turn
      BenchResult result{.backend = list[i]->name,
                         .shape = shape,
                         .sets = inputs.size(),
                         .flops = flops_of(options, shape),
                         .measured = std::move(measured[i]),
                         .rel_error = {},
                         .speedup = {}};
      if (reference && !interrupted()) result.rel_error = check(*list[i], inputs, *reference);
      report_.results.push_back(std::move(result));
    }
    progress.clear();
    for (std::size_t i = begin; i < report_.results.size(); ++i) {
      BenchResult& result = report_.results[i];
      if (result.backend == report_.first) first = &result.measured;
      if (first != nullptr && first != &result.measured)
        result.speedup = speedup_of(*first, result.measured);
      fmt::print("{}", ResultLines(options).line(result));
    }
    std::fflush(stdout);
  }

  // Relative error of the contender's output on the first set.
  double check(Contender& contender, const BenchInputs& inputs, ReferenceRows& reference) {
    const BenchInputs::Set& set = inputs[0];
    contender.attention->forward(set.q, set.k, set.v, set.out, {.padding_is_finite = true});
    conformance::synchronize(report_.device);
    return reference.rel_error(inputs.first_output());
  }

  void save() const { write_text(report_.options.output, report_json(report_).dump(1) + "\n"); }

  const Console& console_;
  bool named_;  // whether the backends were named on the command line
  BenchReport report_;
  std::vector<Contender> contenders_;
};

}  // namespace

Verb add_bench(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand("bench", "Time the backends on a grid of shapes");
  auto o = std::make_shared<BenchOptions>();
  const auto list = [&](const char* name, std::vector<std::int64_t>& values, const char* help) {
    app->add_option(name, values, help)->expected(1, -1)->type_name("N...")->capture_default_str();
  };
  list("--batch-size", o->batch_sizes, "Batch sizes");
  list("--query-length", o->query_lengths, "Query lengths");
  list("--kv-length", o->kv_lengths, "Key/value lengths");
  app->add_option("--num-heads", o->num_heads, "Query heads")
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--num-kv-heads", o->num_kv_heads, "Key/value heads; divides --num-heads")
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--head-size", o->head_size, "Elements of a head")
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--dtype", o->dtype_name, "float16, bfloat16, or float32 (cpu)")
      ->capture_default_str()
      ->type_name("TYPE");
  app->add_flag("--causal,!--no-causal", o->causal,
                "Bottom-right causal mask; runs the equal pairs of --query-length and --kv-length");
  app->add_option("--warmups", o->warmups, "Calls before timing, of each backend and shape")
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--repeats", o->repeats, "Samples of each backend and shape")
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--rounds", o->rounds,
                  "Turns that the backends take; the repeats are dealt out over them [15]")
      ->type_name("N");
  app->add_option(
         "--scope", o->scope_name,
         "call: around each call, the published method; graph: replays of a CUDA graph of 20 or "
         "more calls; sustained: loops of --seconds at the power limit")
      ->capture_default_str()
      ->type_name("SCOPE");
  app->add_option("--seconds", o->seconds, "Length of a turn in scope sustained")
      ->capture_default_str()
      ->type_name("S");
  app->add_option("--sets", o->sets, "Sets of inputs in rotation [enough to exceed the cache]")
      ->type_name("N");
  app->add_option("--backends", o->backends,
                  "Backends to compare, the first is the one that speed-ups are against; a form "
                  "follows a colon: cudnn:packed [all that are available]")
      ->expected(1, -1)
      ->type_name("NAME...");
  app->add_option("--device", o->device_name, kDeviceHelp)->type_name("DEVICE");
  add_threads_option(*app, o->threads, kThreadsHelp);
  app->add_flag("--check", o->check,
                "Compare each output with the float64 reference (sampled rows for large shapes)");
  app->add_option("-o,--output", o->output, "JSON file with all samples")
      ->capture_default_str()
      ->type_name("FILE");
  app->footer(R"(
Examples:
  batten bench                                   the published grid's defaults
  batten bench --batch-size 4 8 16 32 --query-length 128 256 512 1024 --kv-length 4096 \
      --num-heads 12 --num-kv-heads 4 --warmups 30 --repeats 200
  batten bench --device cpu --dtype float32 --query-length 256 --kv-length 256 --check
  batten bench --backends cudnn cudnn:packed single --scope graph

Ctrl-C saves what has been measured.)");
  return {app, [app, o](const Console& console) {
            if (app->count("--seconds") > 0 && o->scope_name != name_of(Scope::sustained))
              throw UsageError("--seconds: only --scope sustained has turns of so many seconds");
            return Bench(*o, command_line(*app), console).run();
          }};
}

}  // namespace batten::tools
