#include "support/environment.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <batten/batten.hpp>

#include "support/cpu.hpp"
#include "support/nvml.hpp"
#include "support/revision.hpp"
#include "support/settings.hpp"

namespace batten::tools {
namespace {

BackendInfo parse_backend(const Json& json) {
  BackendInfo backend;
  backend.name = json.value("name", "");
  backend.automatic = json.value("automatic", false);
  if (json.contains("forms")) backend.forms = json["forms"].get<std::vector<std::string>>();
  for (const Json& state : json.value("devices", Json::array())) {
    backend.states.push_back({.device = state.value("device", ""),
                              .available = state.value("available", false),
                              .reason = state.value("reason", ""),
                              .remedy = state.value("remedy", ""),
                              .library = state.value("library", "")});
  }
  return backend;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

// "9.19.0" of "cuDNN 9.19.0, /usr/lib/...": the version is what results are compared by.
std::string version_in(const std::string& library) {
  constexpr std::string_view kDigits = "0123456789";
  std::size_t begin = library.find_first_of(kDigits);
  while (begin != std::string::npos) {
    const std::size_t end =
        std::min(library.find_first_not_of("0123456789.", begin), library.size());
    const std::size_t last = library.find_last_of(kDigits, end - 1);
    std::string word = library.substr(begin, last + 1 - begin);
    if (word.find('.') != std::string::npos) return word;
    begin = library.find_first_of(kDigits, end);
  }
  return library;
}

}  // namespace

const BackendState* BackendInfo::on(Device device) const {
  const std::string text = device.str();
  const auto it = std::find_if(states.begin(), states.end(),
                               [&](const BackendState& state) { return state.device == text; });
  return it == states.end() ? nullptr : &*it;
}

std::vector<std::string> LibraryInfo::backend_names() const {
  std::vector<std::string> names;
  for (const BackendInfo& backend : backends) names.push_back(backend.name);
  return names;
}

const BackendInfo* LibraryInfo::find(std::string_view name) const {
  const auto it = std::find_if(backends.begin(), backends.end(),
                               [&](const BackendInfo& backend) { return backend.name == name; });
  return it == backends.end() ? nullptr : &*it;
}

LibraryInfo library_info() {
  LibraryInfo info;
  info.json = Json::parse(batten::info());
  for (const Json& device : info.json.value("devices", Json::array())) {
    if (device.value("name", "").starts_with("cuda:")) ++info.num_gpus;
  }
  for (const Json& backend : info.json.value("backends", Json::array()))
    info.backends.push_back(parse_backend(backend));
  return info;
}

std::string cuda_version_text(int version) {
  return version == 0 ? "" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string driver_version() { return nvidia_driver_version(); }

Json environment_json(const LibraryInfo& info, Device device) {
  const std::string gpu = device.is_cpu() ? "cuda:0" : device.str();
  const Cpu cpu = describe_cpu();
  Json environment{{"gpu", nullptr}, {"compute_capability", nullptr}};
  for (const Json& entry : info.json.value("devices", Json::array())) {
    if (entry.value("name", "") != gpu) continue;
    environment["gpu"] = entry.value("model", "");
    environment["compute_capability"] = entry.value("compute_capability", "");
  }
  const Json cuda = info.json.value("cuda", Json::object());
  const std::string driver = driver_version();
  environment["driver"] =
      text_or_null(driver.empty() ? cuda_version_text(cuda.value("driver", 0)) : driver);
  environment["cuda"] = text_or_null(cuda_version_text(cuda.value("runtime", 0)));
  environment["cudnn"] = nullptr;
  if (const BackendInfo* cudnn = info.find("cudnn")) {
    for (const BackendState& state : cudnn->states) {
      if (state.device == gpu && state.available)
        environment["cudnn"] = text_or_null(version_in(state.library));
    }
  }
  environment["cpu"] = cpu.model;
  environment["cores"] = cpu.cores;
  environment["simd"] = cpu.simd;
  environment["batten"] = batten_version();
  environment["git"] = git_revision();
  environment["settings"] = settings_json();
  return environment;
}

std::string utc_time() {
  const ::time_t now = ::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace batten::tools
