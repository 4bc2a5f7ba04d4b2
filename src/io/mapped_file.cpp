#include "io/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "io/text.hpp"

namespace batten::io {
namespace {

// The mapping outlives the descriptor, so it is closed on every way out of the constructor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

const char* reading_advice(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "check the path";
    case EACCES:
    case EPERM:
      return "check its permissions and those of the folders above it";
    default:
      return "check the path and the disk";
  }
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const std::string name = printable_path(path.native());
  // O_NONBLOCK: opening a FIFO for reading would otherwise wait for a writer before we can refuse.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    const int error = errno;
    fail(ErrorCode::InvalidArgument, "cannot read '{}': {}; {}", name, errno_text(error),
         reading_advice(error));
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    const int error = errno;
    fail(ErrorCode::InvalidArgument, "cannot read '{}': {}; {}", name, errno_text(error),
         reading_advice(error));
  }
  if (S_ISDIR(status.st_mode)) {
    fail(ErrorCode::InvalidArgument, "cannot read '{}': it is a directory; name a file in it",
         name);
  }
  if (!S_ISREG(status.st_mode)) {
    fail(ErrorCode::InvalidArgument,
         "cannot read '{}': it is a device, pipe or socket, which cannot be mapped; copy its data "
         "to a regular file first",
         name);
  }
  if (status.st_size <= 0) {
    fail(ErrorCode::InvalidArgument,
         "cannot read '{}': the file is empty; write it again or name another", name);
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max())) {
    fail(ErrorCode::InvalidArgument, "cannot read '{}': {} bytes exceed this address space", name,
         size);
  }
  void* address =
      ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    fail(ErrorCode::InvalidArgument,
         "cannot map '{}' ({} bytes): {}; copy it to a local disk or free address space", name,
         size, errno_text(error));
  }
  bytes_ = {static_cast<const std::byte*>(address), static_cast<std::size_t>(size)};
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

void MappedFile::unmap() noexcept {
  if (bytes_.empty()) return;
  // munmap takes a non-const pointer; nothing is written through it.
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  bytes_ = {};
}

}  // namespace batten::io
