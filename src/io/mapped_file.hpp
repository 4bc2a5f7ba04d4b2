// A read-only memory mapping of a whole file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace batten::io {

/// A whole regular file mapped read-only into memory. Pages are read from disk on first touch.
///
/// A file that another process shortens after it was mapped is outside this class: touching the
/// lost pages raises SIGBUS, as with any mapping. A file that is replaced by rename (what
/// `AtomicFile` does) is safe: the mapping keeps the old contents.
class MappedFile {
 public:
  /// Maps `path`. Throws `Error{InvalidArgument}`, one line with the path and the system's reason,
  /// if it is missing, unreadable, a directory, anything else but a regular file, or empty.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();

  /// Moving keeps the mapping's address, so views into it stay valid.
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// The file's bytes; valid while this object (or the one it was moved to) lives. Never empty,
  /// except after having been moved from.
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  void unmap() noexcept;

  std::span<const std::byte> bytes_;
};

}  // namespace batten::io
