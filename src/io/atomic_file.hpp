// Writing a file completely or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace batten::io {

/// Writes a file so that readers see either what was there before or the complete new contents.
///
/// The bytes go to a temporary file in the destination's directory (created exclusively, named
/// `<name>.tmp-<random>`); `commit` flushes it to disk and renames it over the destination. Until
/// then the destination is untouched, and on any error, or if the object is destroyed without
/// `commit`, the temporary is removed. A killed process leaves at most the temporary.
///
/// A symbolic link as destination is followed: the file it points to is replaced, the link stays.
/// The permission bits of a file that is replaced are kept; its owner and hard links are not. A
/// destination that is a device or a pipe (`/dev/stdout`, `/dev/null`) cannot be replaced: it is
/// written directly.
///
/// Every error is `Error{InvalidArgument}`, one line with the path and the system's reason. Not
/// for use by two threads at once.
class AtomicFile {
 public:
  /// Creates the temporary file. Throws if `path` is empty or a directory, if its directory does
  /// not exist or is not writable, or if an existing file at `path` is not writable.
  explicit AtomicFile(const std::filesystem::path& path);

  /// Removes the temporary unless `commit` succeeded.
  ~AtomicFile();

  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends bytes. Throws when they cannot all be written (disk full, quota, size limit); the
  /// temporary is then gone and the object is of no further use.
  void write(std::span<const std::byte> bytes);

  /// Appends text as it is.
  void write(std::string_view text);

  /// Makes the new contents durable and visible under the destination's name; once, last. Throws
  /// as `write` does. Writing or committing afterwards is an `Error{Internal}`.
  void commit();

 private:
  void discard() noexcept;
  [[noreturn]] void fail_errno(int error);

  std::string path_;       // as given, for messages
  std::string target_;     // what is replaced: path_ with symbolic links followed
  std::string temporary_;  // empty when there is none to remove
  int fd_ = -1;            // -1 once committed or failed
};

}  // namespace batten::io
