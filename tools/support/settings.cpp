#include "support/settings.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/thread_pool.hpp"
#include "support/exit_code.hpp"
#include "support/options.hpp"
#include "support/suggest.hpp"

namespace batten::tools {
namespace {

constexpr std::string_view kPrefix = "BATTEN_";
constexpr std::string_view kBackend = "BATTEN_BACKEND";

// A variable takes a whole number from `least` to `most`, or one of `words`, or any text.
struct Known {
  std::string_view name;
  std::int64_t least = 0;
  std::int64_t most = 0;
  std::vector<std::string_view> words = {};
};

const std::vector<Known>& known() {
  static const std::vector<Known> all{
      {.name = kBackend},
      {.name = "BATTEN_CACHE_DIR"},
      {.name = "BATTEN_CHECK", .words = {"1", "0", "true", "false", "yes", "no", "on", "off"}},
      {.name = "BATTEN_CUBLASLT"},
      {.name = "BATTEN_CUDNN"},
      {.name = "BATTEN_FASTVIDEO"},
      {.name = "BATTEN_LOG_LEVEL", .words = {"debug", "info", "warning", "error", "off"}},
      {.name = "BATTEN_NATIVE_ARCH", .words = {"sm80", "sm90"}},
      {.name = "BATTEN_NUM_THREADS", .least = 1, .most = impl::kMaxThreads},
      {.name = "BATTEN_OPENBLAS"},
      {.name = "BATTEN_PLAN_CACHE", .words = {"off"}},
      {.name = "BATTEN_SMEM_LIMIT", .least = 48, .most = 227},
      {.name = "BATTEN_WORKSPACE_MIB", .least = 1, .most = 1 << 20}};
  return all;
}

const Known* find(std::string_view name) {
  const auto found = std::ranges::find(known(), name, &Known::name);
  return found == known().end() ? nullptr : &*found;
}

std::string unknown(std::string_view name) {
  std::vector<std::string> names;
  for (const Known& one : known()) names.emplace_back(one.name);
  const std::string meant = nearest_word(name, names);
  return "batten reads no such variable" +
         (meant.empty() ? "" : fmt::format(" (did you mean {}?)", meant));
}

std::string problem_of(const std::string& name, const std::string& value, const LibraryInfo* info) {
  const Known* const one = find(name);
  if (one == nullptr) return unknown(name);
  if (one->most > 0 && !is_number(value, one->least, one->most))
    return fmt::format("not valid: expected a whole number from {} to {}", one->least, one->most);
  if (!one->words.empty() && std::ranges::find(one->words, value) == one->words.end())
    return fmt::format("not valid: expected {}", fmt::join(one->words, ", "));
  if (name != kBackend || info == nullptr) return "";
  try {
    check_backend_name("not valid", value, *info);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

std::vector<Setting> settings(const LibraryInfo* info) {
  std::vector<Setting> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (!text.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals));
    const std::string value(text.substr(equals + 1));
    if (!value.empty()) all.push_back({name, value, problem_of(name, value, info)});
  }
  std::ranges::sort(all, {}, &Setting::name);
  return all;
}

Json json_of(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json settings_json() {
  Json json = Json::object();
  for (const Setting& setting : settings(nullptr)) {
    if (find(setting.name) != nullptr) json[setting.name] = json_of(setting.value);
  }
  return json;
}

}  // namespace batten::tools
