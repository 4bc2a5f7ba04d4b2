// `batten info`: versions, devices, backends and why one is not available.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <batten/batten.hpp>
#include <memory>
#include <string>
#include <vector>

#include "support/console.hpp"
#include "support/cpu.hpp"
#include "support/environment.hpp"
#include "support/exit_code.hpp"
#include "support/revision.hpp"
#include "support/settings.hpp"
#include "support/table.hpp"
#include "verbs.hpp"

namespace batten::tools {
namespace {

constexpr double kBytesPerMiB = 1024.0 * 1024.0;
constexpr double kBytesPerGiB = 1024.0 * kBytesPerMiB;

std::string gpu_text(const Json& device) {
  return fmt::format("{}, compute capability {}, {} multiprocessors, {:.1f} GiB",
                     device.value("model", "unknown"), device.value("compute_capability", "?"),
                     device.value("multiprocessors", 0),
                     device.value("memory_bytes", 0.0) / kBytesPerGiB);
}

std::string devices_text(const LibraryInfo& info) {
  Table table({{"device"}, {"what it is"}});
  for (const Json& device : info.json.value("devices", Json::array())) {
    const std::string name = device.value("name", "");
    if (name == "cpu") {
      const Cpu cpu = describe_cpu();
      table.add({name, fmt::format("{}, {} cores, SIMD {}", cpu.model, cpu.cores, cpu.simd)});
    } else {
      table.add({name, gpu_text(device)});
    }
  }
  const Json cuda = info.json.value("cuda", Json::object());
  if (info.num_gpus == 0)
    table.add({"cuda", "none: " + cuda.value("reason", "no device was found")});
  return table.str();
}

// The state that explains a backend that runs nowhere here: of the device that it is made for.
const BackendState* explanation(const BackendInfo& backend) {
  const BackendState* best = nullptr;
  for (const BackendState& state : backend.states) {
    if (best == nullptr || best->device == "cpu") best = &state;
  }
  return best;
}

std::string backend_text(const BackendInfo& backend) {
  std::string devices;
  std::string library;
  for (const BackendState& state : backend.states) {
    if (!state.available) continue;
    devices += (devices.empty() ? "" : ", ") + state.device;
    if (library.empty()) library = state.library;
  }
  std::string text;
  if (!devices.empty()) {
    text = devices + (library.empty() ? "" : "; " + library);
  } else if (const BackendState* state = explanation(backend)) {
    text = state->reason + (state->remedy.empty() ? "" : "; " + state->remedy);
  }
  if (!backend.forms.empty())
    text += fmt::format("; forms {}:{}", backend.name,
                        fmt::join(backend.forms, fmt::format(", {}:", backend.name)));
  if (!backend.automatic) text += "; only when named";
  return text;
}

bool is_available(const BackendInfo& backend) {
  for (const BackendState& state : backend.states) {
    if (state.available) return true;
  }
  return false;
}

// In the order in which `auto` tries them.
std::string backends_text(const LibraryInfo& info) {
  Table table({{"backend"}, {"available"}, {"where, or why not and how to get it"}});
  for (const BackendInfo& backend : info.backends) {
    const bool available = is_available(backend);
    table.add({backend.name,
               available ? Table::Cell("yes", Color::green) : Table::Cell("no", Color::yellow),
               one_line(backend_text(backend))});
  }
  return table.str();
}

std::string workspace_text(const LibraryInfo& info) {
  const Json workspace = info.json.value("workspace", Json::object());
  std::string text =
      fmt::format("workspace: at most {:.0f} MiB a device and stream (BATTEN_WORKSPACE_MIB)",
                  workspace.value("cap_bytes", 0.0) / kBytesPerMiB);
  const Json pools = workspace.value("pools", Json::array());
  if (pools.empty()) return text + ", none in use\n";
  text += '\n';
  for (const Json& pool : pools) {
    text += fmt::format("  {} stream {}: {:.1f} MiB\n", pool.value("device", ""),
                        pool.value("stream", std::uint64_t{0}),
                        pool.value("bytes", 0.0) / kBytesPerMiB);
  }
  return text;
}

std::string versions_text(const LibraryInfo& info) {
  const Json batten = info.json.value("batten", Json::object());
  const Json cuda = info.json.value("cuda", Json::object());
  std::string text =
      fmt::format("batten {} (git {}), built {} CUDA", batten_version(), git_revision(),
                  batten.value("cuda_build", false) ? "with" : "without");
  const std::string runtime = cuda_version_text(cuda.value("runtime", 0));
  const std::string driver = driver_version();
  if (!runtime.empty()) text += " " + runtime;
  if (!driver.empty()) text += fmt::format(", NVIDIA driver {}", driver);
  return text + '\n';
}

// "" where none is set.
std::string settings_text(const std::vector<Setting>& settings) {
  if (settings.empty()) return "";
  Table table({{"variable"}, {"value"}, {"remark"}});
  for (const Setting& setting : settings) {
    table.add({one_line(setting.name),
               one_line(setting.value),
               {one_line(setting.problem), Color::yellow}});
  }
  return table.str();
}

Json variables_json(const LibraryInfo& info) {
  Json all = Json::array();
  for (const Setting& setting : settings(&info)) {
    Json entry{{"name", json_of(setting.name)}, {"value", json_of(setting.value)}};
    if (!setting.problem.empty()) entry["problem"] = json_of(setting.problem);
    all.push_back(std::move(entry));
  }
  return all;
}

// What a variable holds may be why the library says nothing: then its variables are said all the
// same.
LibraryInfo library_info_or_settings(bool json) {
  try {
    return library_info();
  } catch (const Error&) {
    if (!json) fmt::print("{}", settings_text(settings(nullptr)));
    throw;
  }
}

int run_info(bool json) {
  const LibraryInfo info = library_info_or_settings(json);
  if (json) {
    Json out = info.json;
    out["environment"] = environment_json(info, Device::cpu());
    out["variables"] = variables_json(info);
    fmt::print("{}\n", out.dump(2));
    return kExitOk;
  }
  const std::string variables = settings_text(settings(&info));
  fmt::print("{}\n{}\n{}\n{}{}{}", versions_text(info), devices_text(info), backends_text(info),
             workspace_text(info), variables.empty() ? "" : "\n", variables);
  return kExitOk;
}

}  // namespace

Verb add_info(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "info", "Show versions, devices, backends, and why one is not available");
  auto json = std::make_shared<bool>(false);
  app->add_flag("--json", *json, "Print JSON");
  app->footer(R"(
Examples:
  batten info
  batten info --json | python3 -m json.tool)");
  return {app, [json](const Console&) { return run_info(*json); }};
}

}  // namespace batten::tools
