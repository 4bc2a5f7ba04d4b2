#include "backends/cudnn/plan_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "core/cache_folder.hpp"
#include "core/env.hpp"
#include "core/log.hpp"

namespace batten::impl::cudnn {
namespace {

namespace fs = std::filesystem;

// The layout, in the machine's byte order: magic, format, key length, plan length, checksum of key
// and plan, key, plan.
constexpr std::array<char, 8> kMagic = {'B', 'T', 'N', 'C', 'U', 'D', 'N', 'N'};
constexpr std::uint32_t kFormat = 1;
constexpr std::uint64_t kMostBytes = 64u << 20;

struct Header {
  std::array<char, 8> magic;
  std::uint32_t format;
  std::uint32_t key_bytes;
  std::uint64_t plan_bytes;
  std::uint64_t checksum;
};
static_assert(sizeof(Header) == 32);

// FNV-1a.
std::uint64_t checksum(std::uint64_t hash, std::span<const std::uint8_t> bytes) {
  for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}
constexpr std::uint64_t kChecksumStart = 0xcbf29ce484222325u;

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) (void)::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

bool read_all(int fd, std::vector<std::uint8_t>& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

bool write_all(int fd, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

std::string plan_file_key(const PlanOrigin& o, std::string_view graph) {
  return fmt::format(
      "device={} arch={} multiprocessors={} cudnn={} headers={} cuda={} frontend={} graph: {}",
      o.device, o.arch, o.multiprocessors, o.cudnn_version, o.compiled_version, o.cuda_version,
      o.frontend_version, graph);
}

std::optional<fs::path> plan_folder() {
  if (environment("BATTEN_PLAN_CACHE") == "off") return std::nullopt;
  if (const auto folder = cache_folder()) return *folder / "cudnn";
  return std::nullopt;
}

fs::path plan_path(const fs::path& folder, std::string_view key) {
  return folder / fmt::format("{:016x}.plan", checksum(kChecksumStart, bytes_of(key)));
}

std::vector<std::uint8_t> encode_plan(std::string_view key, std::span<const std::uint8_t> plan) {
  const Header header{kMagic, kFormat, static_cast<std::uint32_t>(key.size()), plan.size(),
                      checksum(checksum(kChecksumStart, bytes_of(key)), plan)};
  std::vector<std::uint8_t> bytes(sizeof(header) + key.size() + plan.size());
  std::uint8_t* const body = bytes.data() + sizeof(header);
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::copy(key.begin(), key.end(), body);
  std::copy(plan.begin(), plan.end(), body + key.size());
  return bytes;
}

std::optional<std::vector<std::uint8_t>> decode_plan(std::string_view key,
                                                     std::span<const std::uint8_t> bytes,
                                                     std::string& why) {
  Header header;
  if (bytes.size() < sizeof(header)) {
    why = "it is too short";
    return std::nullopt;
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic || header.format != kFormat) {
    why = "it is no plan of this version of batten";
    return std::nullopt;
  }
  const auto body = bytes.subspan(sizeof(header));
  if (header.key_bytes > body.size() || header.plan_bytes != body.size() - header.key_bytes) {
    why = "its length does not match its header";
    return std::nullopt;
  }
  const auto its_key = body.first(header.key_bytes);
  const auto plan = body.subspan(header.key_bytes);
  if (!std::ranges::equal(its_key, bytes_of(key))) {
    why = "it is of another plan";
    return std::nullopt;
  }
  if (checksum(checksum(kChecksumStart, its_key), plan) != header.checksum) {
    why = "its checksum does not match";
    return std::nullopt;
  }
  if (plan.empty()) {
    why = "it is empty";
    return std::nullopt;
  }
  return std::vector<std::uint8_t>(plan.begin(), plan.end());
}

std::optional<std::vector<std::uint8_t>> load_plan(const fs::path& folder, std::string_view key) {
  const fs::path path = plan_path(folder, key);
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    if (errno != ENOENT) {
      log(BATTEN_LOG_DEBUG, "plan file {} is left alone: {}", path.string(), std::strerror(errno));
    }
    return std::nullopt;
  }
  std::string why;
  struct stat status {};
  std::vector<std::uint8_t> bytes;
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    why = "it is not a regular file";
  } else if (status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    why = "another user may have written it";
  } else if (static_cast<std::uint64_t>(status.st_size) > kMostBytes) {
    why = "it is too long";
  } else {
    bytes.resize(static_cast<std::size_t>(status.st_size));
    if (!read_all(file.get(), bytes)) why = "it cannot be read";
  }
  if (why.empty()) {
    if (auto plan = decode_plan(key, bytes, why)) return plan;
  }
  log(BATTEN_LOG_DEBUG, "plan file {} is left alone: {}", path.string(), why);
  return std::nullopt;
}

void store_plan(const fs::path& folder, std::string_view key,
                std::span<const std::uint8_t> plan) noexcept {
  try {
    if (plan.empty() || plan.size() + key.size() + sizeof(Header) > kMostBytes) return;
    std::error_code error;
    fs::create_directories(folder, error);
    const fs::path path = plan_path(folder, key);
    std::string temporary = path.string() + ".XXXXXX";
    {
      const File file(::mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
      if (file.get() < 0) {
        log(BATTEN_LOG_DEBUG, "plan file {} is not kept: {}", path.string(), std::strerror(errno));
        return;
      }
      if (!write_all(file.get(), encode_plan(key, plan))) {
        log(BATTEN_LOG_DEBUG, "plan file {} is not kept: {}", path.string(), std::strerror(errno));
        (void)::unlink(temporary.c_str());
        return;
      }
    }
    // No flush to disk: a file that a crash leaves torn fails its checksum and is written anew.
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      log(BATTEN_LOG_DEBUG, "plan file {} is not kept: {}", path.string(), std::strerror(errno));
      (void)::unlink(temporary.c_str());
    }
  } catch (...) {  // out of memory: then there is no file
  }
}

}  // namespace batten::impl::cudnn
