#include "backends/cudnn/message.hpp"

#include <algorithm>
#include <cctype>

namespace batten::impl::cudnn {

std::string one_line(std::string_view message) {
  constexpr std::size_t kMost = 200;
  for (const std::string_view prefix : {"[cudnn_frontend] ", "Error: ", "ERROR: "}) {
    if (message.starts_with(prefix)) message.remove_prefix(prefix.size());
  }
  std::string line;
  for (const char c : message) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (space && (line.empty() || line.back() == ' ')) continue;
    if (!space && std::iscntrl(static_cast<unsigned char>(c)) != 0) continue;
    line += space ? ' ' : c;
  }
  while (!line.empty() && (line.back() == ' ' || line.back() == '.')) line.pop_back();
  if (line.empty()) return "no reason given";
  if (line.size() > kMost) {
    line.resize(kMost - 3);
    line += "...";
  }
  return line;
}

std::string kernel_name(std::string_view serialized, std::string_view fallback) {
  constexpr std::string_view kGenerated = "cudnn_generated_";
  std::size_t at = serialized.find(kGenerated);
  if (at == std::string_view::npos) return std::string(fallback);
  at += kGenerated.size();
  const auto is_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  const auto begin = serialized.begin() + static_cast<std::ptrdiff_t>(at);
  std::string name(begin, std::find_if_not(begin, serialized.end(), is_name));
  constexpr std::string_view kNative = "fort_native_";
  if (name.starts_with(kNative)) name.erase(0, kNative.size());
  if (const std::size_t suffix = name.rfind("_kernel"); suffix != std::string::npos) {
    name.erase(suffix);
  }
  return name.empty() ? std::string(fallback) : name;
}

}  // namespace batten::impl::cudnn
