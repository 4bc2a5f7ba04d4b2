// Where batten keeps files between processes.
#pragma once

#include <filesystem>
#include <optional>

namespace batten::impl {

// BATTEN_CACHE_DIR, else $XDG_CACHE_HOME/batten, else ~/.cache/batten; nothing without a home.
std::optional<std::filesystem::path> cache_folder();

}  // namespace batten::impl
