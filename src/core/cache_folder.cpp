#include "core/cache_folder.hpp"

#include "core/env.hpp"

namespace batten::impl {

std::optional<std::filesystem::path> cache_folder() {
  using std::filesystem::path;
  if (const auto folder = environment("BATTEN_CACHE_DIR")) return path(*folder);
  if (const auto cache = environment("XDG_CACHE_HOME")) return path(*cache) / "batten";
  if (const auto home = environment("HOME")) return path(*home) / ".cache" / "batten";
  return std::nullopt;
}

}  // namespace batten::impl
