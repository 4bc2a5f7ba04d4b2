// Shapes on the command line: B,Sq,Skv,H[,Hkv[,D]].
#pragma once

#include <cstdint>
#include <string>

namespace batten::tools {

struct NamedShape {
  std::int64_t batch = 1;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  int num_heads = 1;
  int num_kv_heads = 1;  // as many as query heads, where they are not named
  int head_dim = 128;

  // "B4 128x4096, heads 12/4 x 128"
  std::string str() const;
};

// Throws UsageError that begins with `option`.
NamedShape parse_shape(const std::string& option, const std::string& text);

}  // namespace batten::tools
