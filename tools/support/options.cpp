#include "support/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "core/error.hpp"
#include "core/thread_pool.hpp"
#include "support/exit_code.hpp"
#include "support/suggest.hpp"

namespace batten::tools {
namespace {

bool runs_on_gpus_only(const std::string& name) {
  return name == "single" || name == "cudnn" || name == "native";
}

}  // namespace

Device parse_device(const std::string& text) {
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return Device::cuda(0);
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    int index = -1;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + kPrefix.size(), end, index);
    if (error == std::errc() && rest == end && index >= 0) return Device::cuda(index);
  }
  throw UsageError(fmt::format("--device: '{}' is none of cpu, cuda, cuda:N", text));
}

DType parse_dtype(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (text == name_of(dtype)) return dtype;
  }
  throw UsageError(fmt::format("--dtype: '{}' is none of float32, float16, bfloat16", text));
}

Mask parse_mask(const std::string& text) {
  if (text == "none") return Mask::none;
  if (text == "causal") return Mask::causal;
  if (text == "causal-top-left") return Mask::causal_top_left;
  throw UsageError(fmt::format("--mask: '{}' is none of none, causal, causal-top-left", text));
}

Mask parse_mask(const std::string& text, bool causal) {
  const Mask mask = text.empty() ? Mask::none : parse_mask(text);
  if (!causal) return mask;
  if (!text.empty() && mask != Mask::causal)
    throw UsageError(
        fmt::format("--causal is --mask causal, not --mask {}; give one of them", text));
  return Mask::causal;
}

bool is_number(const std::string& text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && value >= least && value <= most;
}

void add_threads_option(CLI::App& app, int& threads, const std::string& help) {
  const auto check = [](const std::string& text) -> std::string {
    return is_number(text, 1, impl::kMaxThreads)
               ? ""
               : fmt::format("{} is not from 1 to {}", text, impl::kMaxThreads);
  };
  app.add_option("--threads", threads, help)->type_name("N")->check(CLI::Validator(check, ""));
}

std::string backend_name(const std::string& backend) {
  return backend.substr(0, backend.find(':'));
}

void check_backend_name(const std::string& option, const std::string& backend,
                        const LibraryInfo& info) {
  if (backend == "auto") return;
  const std::string name = backend_name(backend);
  const BackendInfo* known = info.find(name);
  if (known == nullptr) {
    const std::string meant = nearest_word(name, info.backend_names());
    throw UsageError(fmt::format("{}: unknown backend '{}'{}, expected auto, {}", option, backend,
                                 meant.empty() ? "" : fmt::format(" (did you mean {}?)", meant),
                                 fmt::join(info.backend_names(), ", ")));
  }
  if (name == backend) return;
  const std::string form = backend.substr(name.size() + 1);
  if (std::find(known->forms.begin(), known->forms.end(), form) != known->forms.end()) return;
  throw UsageError(fmt::format("{}: backend '{}' has no form '{}', {}", option, name, form,
                               known->forms.empty()
                                   ? std::string("it has none")
                                   : fmt::format("expected {}", fmt::join(known->forms, ", "))));
}

void require_device(Device device, const std::string& backend, const LibraryInfo& info) {
  if (device.is_cpu() || device.index < info.num_gpus) return;
  const BackendInfo* named = info.find(backend_name(backend));
  const BackendState* state = named != nullptr ? named->on(device) : nullptr;
  if (state != nullptr && !state->available && runs_on_gpus_only(named->name)) {
    fail(ErrorCode::Unavailable, "backend {} is not available on {}: {}{}{}", named->name,
         device.str(), state->reason, state->remedy.empty() ? "" : "; ", state->remedy);
  }
  if (info.num_gpus > 0) {
    fail(ErrorCode::Unavailable,
         "{}: there is no such device, the last one is cuda:{}; `batten info` "
         "lists them",
         device.str(), info.num_gpus - 1);
  }
  const Json cuda = info.json.value("cuda", Json::object());
  fail(ErrorCode::Unavailable,
       "{}: {}; use --device cpu, or a machine with a GPU and batten built for it", device.str(),
       cuda.value("reason", "no GPU was found"));
}

Device choose_device(const std::string& text, const std::string& backend, DType dtype,
                     const LibraryInfo& info) {
  std::string name = backend_name(backend);
  if (name.empty()) {
    const char* variable = std::getenv("BATTEN_BACKEND");
    if (variable != nullptr) name = backend_name(variable);
  }
  Device device = Device::cuda(0);
  if (!text.empty()) {
    device = parse_device(text);
  } else if (!runs_on_gpus_only(name) &&
             (name == "cpu" || dtype == DType::f32 || info.num_gpus == 0)) {
    device = Device::cpu();
  }
  require_device(device, name, info);
  return device;
}

}  // namespace batten::tools
