#include "dispatch/info.hpp"

#include <nlohmann/json.hpp>

#include "core/thread_pool.hpp"
#include "dispatch/plan_cache.hpp"
#include "dispatch/registry.hpp"
#include "dispatch/workspace.hpp"

namespace batten::impl {
namespace {

using nlohmann::json;

json availability_json(const Backend& backend, Device device) {
  const Availability a = backend.availability(device);
  json j{{"device", device.str()}, {"available", a.available}};
  if (!a.available) {
    j["reason"] = a.reason;
    if (!a.remedy.empty()) j["remedy"] = a.remedy;
  }
  if (!a.library.empty()) j["library"] = a.library;
  return j;
}

}  // namespace

std::string info_json() {
  const DeviceRuntime& runtime = device_runtime();
  const int gpus = runtime.device_count();
  json j;
  j["batten"] = {{"version", batten_version()}, {"cuda_build", BATTEN_WITH_CUDA != 0}};
  j["cuda"] = {{"runtime", runtime.runtime_version()}, {"driver", runtime.driver_version()}};
  if (gpus == 0) j["cuda"]["reason"] = runtime.why_unavailable();
  j["devices"] = json::array({{{"name", "cpu"}, {"threads", default_num_threads()}}});
  for (int i = 0; i < gpus; ++i) {
    const DeviceProperties& p = runtime.properties(i);
    j["devices"].push_back(
        {{"name", Device::cuda(i).str()},
         {"model", p.name},
         {"compute_capability", std::to_string(p.major) + "." + std::to_string(p.minor)},
         {"multiprocessors", p.multiprocessors},
         {"memory_bytes", p.total_memory},
         {"l2_bytes", p.l2_bytes}});
  }
  j["backends"] = json::array();
  for (const Registration& entry : Registry::instance().all()) {
    const Backend& backend = *entry.backend;
    json b{{"name", backend.name()}, {"automatic", entry.automatic}, {"forms", backend.forms()}};
    b["devices"] = json::array({availability_json(backend, Device::cpu())});
    // Without a GPU, cuda:0 tells what a user who expects one would have to mend.
    for (int i = 0; i < std::max(gpus, 1); ++i) {
      b["devices"].push_back(availability_json(backend, Device::cuda(i)));
    }
    j["backends"].push_back(std::move(b));
  }
  const WorkspacePool& pool = WorkspacePool::instance();
  j["workspace"] = {{"cap_bytes", pool.cap_bytes()}, {"pools", json::array()}};
  for (const auto& s : pool.statistics()) {
    j["workspace"]["pools"].push_back(
        {{"device", s.device.str()}, {"stream", s.stream_id}, {"bytes", s.bytes}});
  }
  j["plans"] = PlanCache::instance().size();
  // Paths and messages of other libraries may be anything; they are no reason to say nothing.
  return j.dump(2, ' ', false, json::error_handler_t::replace);
}

}  // namespace batten::impl
