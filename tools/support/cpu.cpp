#include "support/cpu.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

namespace batten::tools {
namespace {

using Names = std::pair<std::string_view, std::string_view>;

// Linux names an x86 processor, and gives the numbers of another.
constexpr std::string_view kImplementerArm = "0x41";
constexpr std::array<Names, 6> kArmParts{{
    {"0xd0c", "Neoverse-N1"},
    {"0xd40", "Neoverse-V1"},
    {"0xd49", "Neoverse-N2"},
    {"0xd4f", "Neoverse-V2"},  // GH200
    {"0xd85", "Cortex-X925"},  // GB10, with the next
    {"0xd87", "Cortex-A725"},
}};

std::string part_name(std::string_view implementer, std::string_view part) {
  const auto* const known = std::find_if(kArmParts.begin(), kArmParts.end(),
                                         [&](const Names& names) { return names.first == part; });
  if (implementer == kImplementerArm && known != kArmParts.end()) return std::string(known->second);
  return fmt::format("part {} of implementer {}", part, implementer);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

std::string simd_of(std::string_view flags) {
  constexpr std::array<Names, 9> kNames{{
      {"avx2", "AVX2"},
      {"avx512f", "AVX-512"},
      {"avx512_bf16", "AVX512-BF16"},
      {"avx512_fp16", "AVX512-FP16"},
      {"amx_bf16", "AMX-BF16"},
      {"asimd", "NEON"},
      {"bf16", "BF16"},
      {"sve", "SVE"},
      {"sve2", "SVE2"},
  }};
  const std::string padded = fmt::format(" {} ", flags);
  std::string text;
  for (const auto& [flag, name] : kNames) {
    if (padded.find(fmt::format(" {} ", flag)) == std::string::npos) continue;
    text += fmt::format("{}{}", text.empty() ? "" : " ", name);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

Cpu parse_cpuinfo(std::string_view text) {
  std::vector<std::string> models;  // the processors of a machine may differ
  const auto add_model = [&](std::string model) {
    if (std::find(models.begin(), models.end(), model) == models.end())
      models.push_back(std::move(model));
  };
  std::string_view implementer;
  std::string_view flags;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view key = trimmed(line.substr(0, colon));
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (value.empty()) continue;
    if (key == "model name") add_model(std::string(value));
    if (key == "CPU implementer") implementer = value;
    if (key == "CPU part") add_model(part_name(implementer, value));
    if ((key == "flags" || key == "Features") && flags.empty()) flags = value;
  }
  return {.model = models.empty() ? "unknown" : fmt::format("{}", fmt::join(models, " + ")),
          .simd = simd_of(flags)};
}

Cpu describe_cpu() {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Cpu cpu = parse_cpuinfo(text);
  cpu_set_t set;
  cpu.cores = ::sched_getaffinity(0, sizeof(set), &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(std::thread::hardware_concurrency());
  return cpu;
}

}  // namespace batten::tools
