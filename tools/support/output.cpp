#include "support/output.hpp"

#include <filesystem>
#include <system_error>

#include "io/atomic_file.hpp"

namespace batten::tools {

void prepare_output(const std::string& path) {
  // Errors of this are left to the trial, which words them.
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status) ||
      std::filesystem::is_socket(status)) {
    return;
  }
  const io::AtomicFile trial(path);
}

void write_text(const std::string& path, std::string_view text) {
  io::AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace batten::tools
