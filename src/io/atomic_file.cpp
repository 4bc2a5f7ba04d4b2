#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX, not in <csignal>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <random>
#include <utility>

#include "core/error.hpp"
#include "io/text.hpp"

namespace batten::io {
namespace {

constexpr int kMaxLinks = 40;                // Linux's own limit on a chain of links
constexpr int kMaxNameAttempts = 100;        // collisions of a 64-bit random name: never
constexpr std::size_t kMaxNamePrefix = 200;  // with the suffix it stays below NAME_MAX (255)
constexpr std::size_t kMaxWrite = std::size_t{1} << 30;  // one write(2) takes less than 2 GiB

// Writing past RLIMIT_FSIZE raises SIGXFSZ, which kills the process by default. Held back in this
// thread for the duration of one write, it turns into the error EFBIG, which can be reported.
class FileSizeSignalBlock {
 public:
  FileSizeSignalBlock() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &previous_);
  }
  ~FileSizeSignalBlock() {
    if (!was_pending_) {
      const timespec no_wait{};
      while (sigtimedwait(&signal_, nullptr, &no_wait) == -1 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }
  FileSizeSignalBlock(const FileSizeSignalBlock&) = delete;
  FileSizeSignalBlock& operator=(const FileSizeSignalBlock&) = delete;

 private:
  sigset_t signal_{};
  sigset_t previous_{};
  bool was_pending_ = false;
};

const char* writing_advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free some space or write elsewhere";
    case EFBIG:
      return "raise the file size limit (ulimit -f) or write elsewhere";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check the permissions of the file and its directory or write elsewhere";
    case ENOENT:
    case ENOTDIR:
      return "create its directory first or correct the path";
    default:
      return "check the path and the disk";
  }
}

// Where a chain of links ends, which need not exist: renaming over a link would replace the link.
std::filesystem::path follow_links(std::filesystem::path path) {
  std::error_code ignored;
  for (int i = 0; i < kMaxLinks && std::filesystem::is_symlink(path, ignored); ++i) {
    const std::filesystem::path next = std::filesystem::read_symlink(path, ignored);
    if (ignored) break;
    path = path.parent_path() / next;  // an absolute `next` replaces the whole
  }
  return path;
}

std::string temporary_name(const std::filesystem::path& target) {
  static thread_local std::random_device random;
  const std::uint64_t token = (std::uint64_t{random()} << 32) | random();
  const std::string name = target.filename().native().substr(0, kMaxNamePrefix);
  return (target.parent_path() / fmt::format("{}.tmp-{:016x}", name, token)).native();
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path.native()) {
  if (path_.empty())
    fail(ErrorCode::InvalidArgument, "cannot write '': the path is empty; give one");
  mode_t kept_mode = 0;
  bool exists = false;
  struct stat status {};
  if (::stat(path_.c_str(), &status) == 0) {
    exists = true;
    if (S_ISDIR(status.st_mode)) fail_errno(EISDIR);
    if (!S_ISREG(status.st_mode)) {
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
      if (fd_ < 0) fail_errno(errno);
      return;
    }
    // rename(2) would replace a read-only file all the same; who protected it expects a refusal.
    if (::access(path_.c_str(), W_OK) != 0) fail_errno(errno);
    kept_mode = status.st_mode & 0777;
  } else if (errno != ENOENT) {
    fail_errno(errno);
  }

  const std::filesystem::path target = follow_links(path);
  if (target.filename().empty()) fail_errno(EISDIR);
  target_ = target.native();
  for (int attempt = 0; fd_ < 0; ++attempt) {
    std::string name = temporary_name(target);
    fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) {
      temporary_ = std::move(name);
    } else if (errno != EEXIST || attempt == kMaxNameAttempts) {
      fail_errno(errno);
    }
  }
  // Best effort: a file system without permissions must not make the write fail.
  if (exists) static_cast<void>(::fchmod(fd_, kept_mode));
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (fd_ < 0) {
    fail(ErrorCode::Internal, "write to '{}' after it was committed or had failed",
         printable_path(path_));
  }
  while (!bytes.empty()) {
    ssize_t written = 0;
    int error = 0;
    {
      const FileSizeSignalBlock block;
      written = ::write(fd_, bytes.data(), std::min(bytes.size(), kMaxWrite));
      error = errno;
    }
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    } else if (error != EINTR) {
      fail_errno(error);
    }
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

void AtomicFile::commit() {
  if (fd_ < 0) {
    fail(ErrorCode::Internal, "commit of '{}' after it was committed or had failed",
         printable_path(path_));
  }
  // Before the rename: after a power cut the name must not point to data that never got written.
  // Devices and pipes have nothing to flush and say EINVAL.
  if (!temporary_.empty() && ::fsync(fd_) != 0) fail_errno(errno);
  // Network file systems report a full disk only here. The descriptor is gone even on error.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) fail_errno(errno);
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_errno(errno);
  temporary_.clear();

  // The new name itself becomes durable with its directory. The contents are complete and visible
  // by now, so a file system that cannot do this is no reason to report a failure.
  std::string directory = std::filesystem::path(target_).parent_path().native();
  if (directory.empty()) directory = ".";
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    static_cast<void>(::fsync(fd));
    ::close(fd);
  }
}

void AtomicFile::discard() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::fail_errno(int error) {
  discard();
  if (error == EISDIR) {
    fail(ErrorCode::InvalidArgument, "cannot write '{}': it is a directory; give a file name",
         printable_path(path_));
  }
  fail(ErrorCode::InvalidArgument, "cannot write '{}': {}; {}", printable_path(path_),
       errno_text(error), writing_advice(error));
}

}  // namespace batten::io
