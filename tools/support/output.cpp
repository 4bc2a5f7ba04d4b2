#include "support/output.hpp"

#include <filesystem>
#include <system_error>
#include <vector>

#include "io/atomic_file.hpp"

namespace batten::tools {

namespace {

// The folders above a file, those that are missing first to be made.
std::vector<std::filesystem::path> missing_folders(const std::string& path) {
  std::error_code ignored;
  std::vector<std::filesystem::path> missing;
  for (std::filesystem::path folder = std::filesystem::path(path).parent_path();
       !folder.empty() && !std::filesystem::exists(folder, ignored);
       folder = folder.parent_path()) {
    missing.insert(missing.begin(), folder);
  }
  return missing;
}

}  // namespace

void prepare_output(const std::string& path) {
  // Errors of this are left to the trial, which words them.
  std::error_code ignored;
  const std::vector<std::filesystem::path> made = missing_folders(path);
  for (const std::filesystem::path& folder : made) {
    std::filesystem::create_directory(folder, ignored);
  }
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status) ||
      std::filesystem::is_socket(status)) {
    return;
  }
  try {
    const io::AtomicFile trial(path);
  } catch (...) {
    // Where nothing can be written, nothing is left.
    for (auto folder = made.rbegin(); folder != made.rend(); ++folder) {
      std::filesystem::remove(*folder, ignored);
    }
    throw;
  }
}

void write_text(const std::string& path, std::string_view text) {
  io::AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace batten::tools
