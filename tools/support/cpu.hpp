// What processor this is.
#pragma once

#include <string>
#include <string_view>

namespace batten::tools {

struct Cpu {
  std::string model;  // "unknown" where the system does not say; several kinds as "A + B"
  int cores = 0;      // that this process may use
  std::string simd;   // the vector instructions that matter here: "AVX2 AVX-512 AVX512-BF16"
};
Cpu describe_cpu();

// What the text of Linux's /proc/cpuinfo says; `cores` stays 0.
Cpu parse_cpuinfo(std::string_view text);

}  // namespace batten::tools
