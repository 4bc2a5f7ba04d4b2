#include "wan/shared_library.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/error.hpp"

namespace batten::wan {
namespace {

namespace fs = std::filesystem;

std::string environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr ? value : "";
}

// Folders in which a CUDA toolkit or a Python package keeps libraries.
std::vector<fs::path> roots() {
  std::vector<fs::path> found;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string home = environment(name); !home.empty()) found.emplace_back(home);
  }
  found.emplace_back("/usr/local/cuda");
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = environment(name);
    if (prefix.empty()) continue;
    std::error_code error;
    for (fs::directory_iterator it(fs::path(prefix) / "lib", error), end; !error && it != end;
         it.increment(error)) {
      if (it->path().filename().string().starts_with("python3"))
        found.push_back(it->path() / "site-packages");
    }
  }
  return found;
}

}  // namespace

SharedLibrary::SharedLibrary(const LibrarySearch& search) : what_(search.what) {
  const std::string given = environment(search.variable);
  if (!given.empty()) {
    for (const std::string& name : search.names) {
      if (open((fs::path(given) / name).string())) return;
    }
    if (open(given)) return;
    fail(ErrorCode::Unavailable, "{}: {} is '{}', which cannot be loaded: {}", what_,
         search.variable, impl::one_line(given), impl::one_line(error_));
  }
  for (const std::string& name : search.names) {
    if (open(name)) return;
  }
  for (const fs::path& root : roots()) {
    for (const std::string& folder : search.folders) {
      for (const std::string& name : search.names) {
        const fs::path file = root / folder / name;
        std::error_code error;
        if (fs::exists(file, error) && open(file.string())) return;
      }
    }
  }
  fail(ErrorCode::Unavailable, "{} was not found ({}); {}", what_, search.names.front(),
       search.remedy);
}

bool SharedLibrary::open(const std::string& file) {
  handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    const char* text = ::dlerror();
    error_ = text != nullptr ? text : "the loader gives no reason";
    return false;
  }
  path_ = file;
  return true;
}

void* SharedLibrary::find(const char* name) const noexcept { return ::dlsym(handle_, name); }

void* SharedLibrary::symbol(const char* name) const {
  void* const found = find(name);
  if (found == nullptr)
    fail(ErrorCode::Unavailable, "{} at {} has no function {}", what_, path_, name);
  return found;
}

}  // namespace batten::wan
