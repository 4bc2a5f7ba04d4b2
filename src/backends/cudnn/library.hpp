// Finding libcudnn at run time, with everything that it loads in turn.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace batten::impl::cudnn {

// The system behind the search, so that tests can stand in for it.
class System {
 public:
  virtual ~System() = default;

  // dlopen; null with the loader's text in `error`.
  virtual void* open(const std::string& name, std::string& error) = 0;
  // The library if the process has it already, else null.
  virtual void* loaded(const std::string& name) = 0;
  virtual void close(void* library) = 0;
  virtual void* symbol(void* library, const char* name) = 0;
  // The file that a symbol came from, or "".
  virtual std::string file_of(void* symbol) = 0;

  virtual bool exists(const std::filesystem::path& path) = 0;
  // Entries of a folder; none if it cannot be read.
  virtual std::vector<std::filesystem::path> list(const std::filesystem::path& folder) = 0;
  virtual std::optional<std::string> environment(const char* name) = 0;
  // The file that holds batten itself.
  virtual std::filesystem::path own_file() = 0;
};

// A libcudnn that batten can use, or the reason why there is none.
struct Library {
  void* handle = nullptr;   // null: none
  std::size_t version = 0;  // 91900
  int cuda_version = 0;     // of the CUDA runtime inside it: 13000
  std::string path;
  std::string found;   // "already loaded", "by BATTEN_CUDNN", "by the loader", ...
  std::string reason;  // why there is none, one clause
  std::string remedy;

  bool usable() const noexcept { return handle != nullptr; }
  std::string text() const;  // "cuDNN 9.19.0 (/usr/lib/libcudnn.so.9, found by the loader)"
};

// Looks in this order: already loaded, BATTEN_CUDNN, the loader's path, site-packages of the Python
// environments in reach, the CUDA toolkit.
Library find_library(System& system);

// The process's library: searched for until one is found, then kept.
Library library();

// A function of the library, or null. Only after library() has found one.
void* library_symbol(const char* name) noexcept;

// The real system.
System& system();

}  // namespace batten::impl::cudnn
