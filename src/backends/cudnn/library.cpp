#include "backends/cudnn/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <system_error>

#include "backends/cudnn/rules.hpp"

namespace batten::impl::cudnn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "libcudnn.so.9";
constexpr const char* kRemedy =
    "install cuDNN 9.19 or newer (the wheel nvidia-cudnn-cu13, or your system's package), or set "
    "BATTEN_CUDNN to libcudnn.so.9 or its folder";

// cuDNN is a shell that opens these from its own folder when they are needed.
constexpr const char* kParts[] = {"libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9",
                                  "libcudnn_heuristic.so.9"};

class Search {
 public:
  explicit Search(System& system) : system_(system) {}

  Library run() {
    std::string error;
    if (void* handle = system_.loaded(kName)) {
      // A second libcudnn beside one that is in use would share its parts by name.
      return examine(handle, "already loaded").value_or(refusal_);
    }
    if (const auto given = system_.environment("BATTEN_CUDNN")) {
      fs::path file = *given;
      if (system_.exists(file / kName)) file /= kName;
      return try_file(file, "by BATTEN_CUDNN").value_or(refusal_);
    }
    if (void* handle = system_.open(kName, error)) {
      if (auto found = examine(handle, "by the loader")) return *found;
    }
    for (const fs::path& folder : site_packages()) {
      const fs::path file = folder / "nvidia" / "cudnn" / "lib" / kName;
      if (!system_.exists(file)) continue;
      if (auto found = try_file(file, "in site-packages")) return *found;
    }
    for (const fs::path& folder : toolkits()) {
      const fs::path file = folder / kName;
      if (!system_.exists(file)) continue;
      if (auto found = try_file(file, "in the CUDA toolkit")) return *found;
    }
    if (refusal_.reason.empty()) {
      refusal_.reason = fmt::format("{} was not found", kName);
      refusal_.remedy = kRemedy;
    }
    return refusal_;
  }

 private:
  std::optional<Library> try_file(const fs::path& file, const char* found) {
    std::string error;
    void* const handle = system_.open(file.string(), error);
    if (handle == nullptr) {
      refuse(fmt::format("{} cannot be loaded: {}", file.string(), error), kRemedy);
      return std::nullopt;
    }
    return examine(handle, found);
  }

  // The first refusal is kept: it is of the library that the user would expect.
  void refuse(std::string reason, std::string remedy) {
    if (!refusal_.reason.empty()) return;
    refusal_.reason = std::move(reason);
    refusal_.remedy = std::move(remedy);
  }

  std::optional<Library> examine(void* handle, const char* found) {
    using Version = std::size_t (*)();
    void* const version = system_.symbol(handle, "cudnnGetVersion");
    void* const cuda_version = system_.symbol(handle, "cudnnGetCudartVersion");
    if (version == nullptr || cuda_version == nullptr) {
      refuse(fmt::format("the {} that was found {} is not cuDNN", kName, found), kRemedy);
      system_.close(handle);
      return std::nullopt;
    }
    Library library;
    library.handle = handle;
    library.version = reinterpret_cast<Version>(version)();
    library.cuda_version = static_cast<int>(reinterpret_cast<Version>(cuda_version)());
    library.path = system_.file_of(version);
    if (library.path.empty()) library.path = kName;
    library.found = found;
    if (library.version < kOldestVersion || library.version >= 100000) {
      refuse(fmt::format("cuDNN {} at {} is not one that batten can use, it needs {} or newer of "
                         "cuDNN 9",
                         version_text(library.version), library.path, version_text(kOldestVersion)),
             kRemedy);
    } else if (const auto missing = missing_part(library)) {
      refuse(
          fmt::format("cuDNN {} at {} needs {}, which was not found", version_text(library.version),
                      library.path, *missing),
          missing->starts_with("libnvrtc")
              ? fmt::format("install NVRTC (the wheel nvidia-cuda-nvrtc, or the CUDA {} toolkit)",
                            library.cuda_version / 1000)
              : "install cuDNN anew: all of its libraries belong into one folder");
    } else {
      return library;
    }
    system_.close(handle);
    return std::nullopt;
  }

  std::optional<std::string> missing_part(const Library& library) {
    const fs::path folder = fs::path(library.path).parent_path();
    std::string error;
    for (const char* part : kParts) {
      if (system_.exists(folder / part) || system_.loaded(part) != nullptr) continue;
      if (system_.open(part, error) == nullptr) return part;
    }
    // Every attention kernel is compiled when its plan is built. Opened here, NVRTC is found by
    // cuDNN even where its own search would miss it.
    const int major = library.cuda_version / 1000;
    const std::string nvrtc = fmt::format("libnvrtc.so.{}", major);
    if (system_.loaded(nvrtc) != nullptr) return std::nullopt;
    std::vector<fs::path> places = {folder / nvrtc, folder / "../../cuda_nvrtc/lib" / nvrtc,
                                    folder / fmt::format("../../cu{}/lib", major) / nvrtc};
    for (const fs::path& toolkit : toolkits()) places.push_back(toolkit / nvrtc);
    for (const fs::path& place : places) {
      if (system_.exists(place) && system_.open(place.string(), error) != nullptr)
        return std::nullopt;
    }
    if (system_.open(nvrtc, error) != nullptr) return std::nullopt;
    return nvrtc;
  }

  std::vector<fs::path> toolkits() {
    std::vector<fs::path> folders;
    for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
      if (const auto home = system_.environment(name)) folders.push_back(fs::path(*home) / "lib64");
    }
    folders.push_back("/usr/local/cuda/lib64");
    return folders;
  }

  // Folders named site-packages or dist-packages that a Python of this user would import from.
  // Python itself is not asked: starting it would take longer than everything else here.
  std::vector<fs::path> site_packages() {
    std::vector<fs::path> folders;
    const auto add = [&](const fs::path& folder) {
      if (std::find(folders.begin(), folders.end(), folder) == folders.end())
        folders.push_back(folder);
    };
    // batten's own Python package knows its neighbours.
    for (fs::path p = system_.own_file().parent_path(); p.has_relative_path();
         p = p.parent_path()) {
      if (p.filename() == "site-packages" || p.filename() == "dist-packages") add(p);
    }
    if (const auto path = system_.environment("PYTHONPATH")) {
      for (const fs::path& p : split(*path)) add(p);
    }
    std::vector<fs::path> prefixes;
    for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
      if (const auto prefix = system_.environment(name)) prefixes.emplace_back(*prefix);
    }
    if (const auto path = system_.environment("PATH")) {
      for (const fs::path& p : split(*path)) {
        if (p.filename() == "bin" && system_.exists(p / "python3")) {
          prefixes.push_back(p.parent_path());
        }
      }
    }
    if (const auto home = system_.environment("HOME"))
      prefixes.push_back(fs::path(*home) / ".local");
    for (const fs::path& prefix : prefixes) {
      for (const char* lib : {"lib", "lib64"}) {
        for (const fs::path& python : system_.list(prefix / lib)) {
          if (!python.filename().string().starts_with("python3")) continue;
          add(python / "site-packages");
          add(python / "dist-packages");
        }
      }
    }
    return folders;
  }

  static std::vector<fs::path> split(const std::string& path) {
    std::vector<fs::path> parts;
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find(':', begin), path.size());
      if (end > begin) parts.emplace_back(path.substr(begin, end - begin));
      begin = end + 1;
    }
    return parts;
  }

  System& system_;
  Library refusal_;
};

class RealSystem final : public System {
 public:
  void* open(const std::string& name, std::string& error) override {
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* text = dlerror();
      error = text != nullptr ? text : "the loader gives no reason";
    }
    return handle;
  }
  void* loaded(const std::string& name) override {
    return dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
  }
  void close(void* library) override { (void)dlclose(library); }
  void* symbol(void* library, const char* name) override { return dlsym(library, name); }
  std::string file_of(void* symbol) override {
    Dl_info info{};
    return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
  }
  bool exists(const fs::path& path) override {
    std::error_code error;
    return fs::exists(path, error);
  }
  std::vector<fs::path> list(const fs::path& folder) override {
    std::vector<fs::path> entries;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      entries.push_back(it->path());
    }
    // Newest Python first: python3.9 sorts after python3.12 as text, so by length, then by name.
    std::sort(entries.begin(), entries.end(), [](const fs::path& a, const fs::path& b) {
      const std::string x = a.filename().string(), y = b.filename().string();
      return x.size() != y.size() ? x.size() > y.size() : x > y;
    });
    return entries;
  }
  std::optional<std::string> environment(const char* name) override {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }
  fs::path own_file() override {
    std::error_code error;
    const fs::path file = file_of(reinterpret_cast<void*>(&find_library));
    const fs::path whole = fs::weakly_canonical(file, error);
    return error ? file : whole;
  }
};

std::atomic<void*> g_handle = nullptr;  // of the process's library, for library_symbol()

}  // namespace

std::string Library::text() const {
  return fmt::format("cuDNN {} ({}, {}{})", version_text(version), path,
                     found.starts_with("already") ? "" : "found ", found);
}

Library find_library(System& system) { return Search(system).run(); }

System& system() {
  static RealSystem real;
  return real;
}

Library library() {
  // Never destroyed: threads may still run when the process ends.
  static std::mutex& mutex = *new std::mutex;
  static Library& found = *new Library;
  const std::lock_guard lock(mutex);
  if (!found.usable()) {
    found = find_library(system());
    g_handle.store(found.handle, std::memory_order_release);
  }
  return found;
}

void* library_symbol(const char* name) noexcept {
  void* const handle = g_handle.load(std::memory_order_acquire);
  return handle != nullptr ? dlsym(handle, name) : nullptr;
}

}  // namespace batten::impl::cudnn
