#include "support/shape_option.hpp"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <string_view>
#include <system_error>
#include <vector>

#include "support/exit_code.hpp"

namespace batten::tools {
namespace {

std::vector<std::int64_t> numbers_of(const std::string& option, const std::string& text) {
  std::vector<std::int64_t> numbers;
  std::string_view rest = text;
  for (;;) {
    std::int64_t n = 0;
    const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), n);
    const bool ends = stop == rest.data() + rest.size();
    if (error != std::errc() || n < 0 || n > std::numeric_limits<std::int32_t>::max() ||
        (!ends && *stop != ',')) {
      throw UsageError(
          fmt::format("{}: '{}' is not B,Sq,Skv,H[,Hkv[,D]] in whole numbers, as 4,128,4096,12,4",
                      option, text));
    }
    numbers.push_back(n);
    if (ends) return numbers;
    rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()) + 1);
  }
}

}  // namespace

std::string NamedShape::str() const {
  return fmt::format("B{} {}x{}, heads {}/{} x {}", batch, queries, keys, num_heads, num_kv_heads,
                     head_dim);
}

NamedShape parse_shape(const std::string& option, const std::string& text) {
  const std::vector<std::int64_t> n = numbers_of(option, text);
  if (n.size() < 4 || n.size() > 6) {
    throw UsageError(fmt::format("{}: '{}' has {} numbers, expected B,Sq,Skv,H[,Hkv[,D]]", option,
                                 text, n.size()));
  }
  NamedShape shape{.batch = n[0],
                   .queries = n[1],
                   .keys = n[2],
                   .num_heads = static_cast<int>(n[3]),
                   .num_kv_heads = static_cast<int>(n.size() > 4 ? n[4] : n[3])};
  if (n.size() > 5) shape.head_dim = static_cast<int>(n[5]);
  if (shape.num_heads < 1 || shape.num_kv_heads < 1 || shape.num_heads % shape.num_kv_heads != 0) {
    throw UsageError(fmt::format("{}: '{}': {} query heads are no multiple of {} key/value heads",
                                 option, text, shape.num_heads, shape.num_kv_heads));
  }
  return shape;
}

}  // namespace batten::tools
