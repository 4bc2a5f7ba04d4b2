#include "support/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/error.hpp"

namespace batten::tools {
namespace {

constexpr double kBytesOfMiB = 1024.0 * 1024.0;

// "" where there is no such file.
std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The number that a text begins with, after blanks.
std::optional<double> number_in(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return static_cast<double>(value);
}

// The number behind a word at the beginning of a line.
std::optional<double> number_after(std::string_view word, std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    if (line.starts_with(word)) return number_in(line.substr(word.size()));
    at += line.size() + 1;
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> available_in(std::string_view meminfo) {
  const auto kilobytes = number_after("MemAvailable:", meminfo);
  if (!kilobytes) return std::nullopt;
  return *kilobytes * 1024;
}

std::optional<double> left_in_group(std::string_view max, std::string_view current,
                                    std::string_view stat) {
  const auto limit = number_in(max);  // "max": none
  const auto used = number_in(current);
  if (!limit || !used) return std::nullopt;
  // Cached files are given up first.
  return std::max(*limit - *used + number_after("inactive_file ", stat).value_or(0), 0.0);
}

std::optional<double> available_bytes(Device device) {
  if (!device.is_cpu()) {
#if BATTEN_WITH_CUDA
    return static_cast<double>(gpu_free_bytes(device.index));
#else
    fail(ErrorCode::Unavailable, "{}: this build of batten has no CUDA support", device.str());
#endif
  }
  const auto system = available_in(text_of("/proc/meminfo"));
  const auto group =
      left_in_group(text_of("/sys/fs/cgroup/memory.max"), text_of("/sys/fs/cgroup/memory.current"),
                    text_of("/sys/fs/cgroup/memory.stat"));
  return system && group ? std::min(*system, *group) : system ? system : group;
}

std::string bytes_text(double bytes) {
  constexpr double kGiB = 1024 * kBytesOfMiB;
  if (bytes < kGiB) return fmt::format("{:.1f} MiB", bytes / kBytesOfMiB);
  return bytes < 1e6 * kGiB ? fmt::format("{:.1f} GiB", bytes / kGiB)
                            : fmt::format("{:.2e} GiB", bytes / kGiB);
}

}  // namespace batten::tools
