// What this machine and this build are: the library's own account, and what it leaves out.
#pragma once

#include <batten/types.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace batten::tools {

// Keys keep the order in which they are added: the files are read by people, too.
using Json = nlohmann::ordered_json;

// Whether a backend can run on a device.
struct BackendState {
  std::string device;
  bool available = false;
  std::string reason;
  std::string remedy;
  std::string library;
};

struct BackendInfo {
  std::string name;
  bool automatic = false;
  std::vector<std::string> forms;
  std::vector<BackendState> states;  // one a device

  // The state on `device`; null where the library says nothing of it.
  const BackendState* on(Device device) const;
};

// batten::info(), parsed. What a newer library adds is kept in `json`.
struct LibraryInfo {
  Json json;
  int num_gpus = 0;
  std::vector<BackendInfo> backends;

  std::vector<std::string> backend_names() const;
  const BackendInfo* find(std::string_view name) const;
};
LibraryInfo library_info();

// "13.0" of CUDA's 13000; "" of 0.
std::string cuda_version_text(int version);

// NVIDIA's driver version, "580.159.04"; "" where there is none.
std::string driver_version();

// {gpu, compute_capability, driver, cuda, cudnn, cpu, cores, simd, batten, git, settings}; null
// where there is none; `settings` is settings_json(). The GPU is `device`, or the first one for the
// CPU.
Json environment_json(const LibraryInfo& info, Device device);

// The time now, "2026-11-30T06:34:00Z".
std::string utc_time();

}  // namespace batten::tools
