// Where the cudnn backend looks for libcudnn, what it accepts, and what it says when there is none.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "backends/cudnn/library.hpp"

namespace batten::impl::cudnn {
namespace {

namespace fs = std::filesystem;

template <std::size_t Value>
std::size_t number() {
  return Value;
}
using Number = std::size_t (*)();

// A file system and a loader made of tables.
class FakeSystem final : public System {
 public:
  struct File {
    Number version = &number<91900>;
    Number cuda = &number<13000>;
    bool loads = true;
  };

  void* open(const std::string& name, std::string& error) override {
    opened.push_back(name);
    std::string path = name;
    if (name.find('/') == std::string::npos) {
      const auto found = on_loader_path.find(name);
      if (found == on_loader_path.end()) {
        error = name + ": cannot open shared object file";
        return nullptr;
      }
      path = found->second;
    }
    const auto file = files.find(fs::path(path).lexically_normal().string());
    if (file == files.end() || !file->second.loads) {
      error = name + ": invalid ELF header";
      return nullptr;
    }
    return handle_of(file->first);
  }
  void* loaded(const std::string& name) override {
    const auto found = already_loaded.find(name);
    return found == already_loaded.end() ? nullptr : handle_of(found->second);
  }
  void close(void* library) override { closed.insert(path_of(library)); }
  void* symbol(void* library, const char* name) override {
    const File& file = files.at(path_of(library));
    last_ = path_of(library);
    if (std::string(name) == "cudnnGetVersion") return reinterpret_cast<void*>(file.version);
    if (std::string(name) == "cudnnGetCudartVersion") return reinterpret_cast<void*>(file.cuda);
    return nullptr;
  }
  std::string file_of(void*) override { return last_; }
  bool exists(const fs::path& path) override {
    const std::string name = path.lexically_normal().string();
    if (files.count(name) != 0) return true;
    const auto after = files.lower_bound(name + "/");
    return after != files.end() && after->first.starts_with(name + "/");
  }
  std::vector<fs::path> list(const fs::path& folder) override {
    std::set<fs::path> entries;
    const std::string prefix = folder.lexically_normal().string() + "/";
    for (const auto& [name, file] : files) {
      if (!name.starts_with(prefix)) continue;
      entries.insert(folder /
                     name.substr(prefix.size(), name.find('/', prefix.size()) - prefix.size()));
    }
    return {entries.begin(), entries.end()};
  }
  std::optional<std::string> environment(const char* name) override {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  }
  fs::path own_file() override { return own; }

  // A complete cuDNN in a folder; returns libcudnn's path.
  std::string install(const std::string& folder, Number version = &number<91900>) {
    for (const char* part : {"libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9",
                             "libcudnn_heuristic.so.9"}) {
      files[folder + "/" + part];
    }
    files[folder + "/libcudnn.so.9"].version = version;
    return folder + "/libcudnn.so.9";
  }
  void install_nvrtc(const std::string& folder) { files[folder + "/libnvrtc.so.13"]; }

  std::map<std::string, File> files;
  std::map<std::string, std::string> on_loader_path;  // name, its path
  std::map<std::string, std::string> already_loaded;
  std::map<std::string, std::string> variables;
  fs::path own = "/app/lib/libbatten.so";
  std::vector<std::string> opened;
  std::set<std::string> closed;

 private:
  void* handle_of(const std::string& path) {
    return const_cast<std::string*>(&*names_.insert(path).first);
  }
  static std::string path_of(void* handle) { return *static_cast<std::string*>(handle); }

  std::set<std::string> names_;
  std::string last_;
};

TEST(CudnnLibrary, NothingAnywhere) {
  FakeSystem system;
  const Library found = find_library(system);
  EXPECT_FALSE(found.usable());
  EXPECT_EQ(found.reason, "libcudnn.so.9 was not found");
  EXPECT_NE(found.remedy.find("BATTEN_CUDNN"), std::string::npos);
}

TEST(CudnnLibrary, OrderOfTheSearch) {
  FakeSystem system;
  system.install_nvrtc("/usr/local/cuda/lib64");
  const std::string toolkit = system.install("/usr/local/cuda/lib64");
  EXPECT_EQ(find_library(system).text(),
            "cuDNN 9.19.0 (" + toolkit + ", found in the CUDA toolkit)");

  const std::string wheel = system.install("/venv/lib/python3.12/site-packages/nvidia/cudnn/lib");
  system.variables["VIRTUAL_ENV"] = "/venv";
  EXPECT_EQ(find_library(system).text(), "cuDNN 9.19.0 (" + wheel + ", found in site-packages)");

  const std::string on_path = system.install("/usr/lib/x86_64-linux-gnu");
  system.on_loader_path["libcudnn.so.9"] = on_path;
  EXPECT_EQ(find_library(system).text(), "cuDNN 9.19.0 (" + on_path + ", found by the loader)");

  const std::string given = system.install("/opt/cudnn/lib");
  system.variables["BATTEN_CUDNN"] = "/opt/cudnn/lib";
  EXPECT_EQ(find_library(system).text(), "cuDNN 9.19.0 (" + given + ", found by BATTEN_CUDNN)");
  system.variables["BATTEN_CUDNN"] = given;
  EXPECT_EQ(find_library(system).path, given);

  system.already_loaded["libcudnn.so.9"] = wheel;
  EXPECT_EQ(find_library(system).text(), "cuDNN 9.19.0 (" + wheel + ", already loaded)");
}

TEST(CudnnLibrary, GivenPathsAreNotPassedOver) {
  FakeSystem system;
  system.install_nvrtc("/usr/local/cuda/lib64");
  system.install("/usr/local/cuda/lib64");
  system.variables["BATTEN_CUDNN"] = "/nowhere";
  const Library found = find_library(system);
  EXPECT_FALSE(found.usable());
  EXPECT_NE(found.reason.find("/nowhere"), std::string::npos);
}

TEST(CudnnLibrary, OldVersionsAreRefusedByName) {
  FakeSystem system;
  system.install_nvrtc("/usr/local/cuda/lib64");
  system.on_loader_path["libcudnn.so.9"] = system.install("/old", &number<91001>);
  Library found = find_library(system);
  EXPECT_FALSE(found.usable());
  EXPECT_NE(found.reason.find("cuDNN 9.10.1 at /old/libcudnn.so.9"), std::string::npos)
      << found.reason;
  EXPECT_NE(found.reason.find("9.10.2"), std::string::npos);
  EXPECT_EQ(system.closed.count("/old/libcudnn.so.9"), 1u);

  // A good one further down the search is taken.
  system.install("/usr/local/cuda/lib64");
  found = find_library(system);
  EXPECT_TRUE(found.usable());
  EXPECT_EQ(found.path, "/usr/local/cuda/lib64/libcudnn.so.9");

  // But not beside one that is in use.
  system.already_loaded["libcudnn.so.9"] = "/old/libcudnn.so.9";
  EXPECT_FALSE(find_library(system).usable());
}

TEST(CudnnLibrary, AFileThatIsNotCudnn) {
  FakeSystem system;
  system.on_loader_path["libcudnn.so.9"] = system.install("/odd", nullptr);
  const Library found = find_library(system);
  EXPECT_FALSE(found.usable());
  EXPECT_NE(found.reason.find("is not cuDNN"), std::string::npos);
}

TEST(CudnnLibrary, PartsMustBeThere) {
  FakeSystem system;
  system.install_nvrtc("/usr/local/cuda/lib64");
  system.on_loader_path["libcudnn.so.9"] = system.install("/half");
  system.files.erase("/half/libcudnn_heuristic.so.9");
  Library found = find_library(system);
  EXPECT_FALSE(found.usable());
  EXPECT_NE(found.reason.find("libcudnn_heuristic.so.9"), std::string::npos);

  system.already_loaded["libcudnn_heuristic.so.9"] = "/half/libcudnn.so.9";
  EXPECT_TRUE(find_library(system).usable());
}

TEST(CudnnLibrary, NvrtcIsFoundWhereCudnnWouldMissIt) {
  FakeSystem system;
  system.on_loader_path["libcudnn.so.9"] = system.install("/env/nvidia/cudnn/lib");
  Library found = find_library(system);
  EXPECT_FALSE(found.usable());
  EXPECT_NE(found.reason.find("libnvrtc.so.13"), std::string::npos);
  EXPECT_NE(found.remedy.find("nvidia-cuda-nvrtc"), std::string::npos);

  // Beside the wheel, as the CUDA 13 wheels lie ...
  system.install_nvrtc("/env/nvidia/cu13/lib");
  EXPECT_TRUE(find_library(system).usable());
  // ... or only in a toolkit: then it is opened by its path, and cuDNN finds it in the process.
  system.files.erase("/env/nvidia/cu13/lib/libnvrtc.so.13");
  system.variables["CUDA_HOME"] = "/cuda";
  system.install_nvrtc("/cuda/lib64");
  system.opened.clear();
  EXPECT_TRUE(find_library(system).usable());
  EXPECT_EQ(system.opened.back(), "/cuda/lib64/libnvrtc.so.13");
}

TEST(CudnnLibrary, PythonEnvironmentsInReach) {
  const auto finds = [](const std::string& site, auto&& set_up) {
    FakeSystem system;
    system.install_nvrtc("/usr/local/cuda/lib64");
    const std::string path = system.install(site + "/nvidia/cudnn/lib");
    set_up(system);
    return find_library(system).path == path;
  };
  EXPECT_TRUE(finds("/e/lib/python3.11/site-packages",
                    [](FakeSystem& s) { s.variables["CONDA_PREFIX"] = "/e"; }));
  EXPECT_TRUE(finds("/e/lib64/python3.11/site-packages",
                    [](FakeSystem& s) { s.variables["VIRTUAL_ENV"] = "/e"; }));
  EXPECT_TRUE(finds("/e/lib/python3.11/site-packages", [](FakeSystem& s) {
    s.files["/e/bin/python3"];
    s.variables["PATH"] = "/bin:/e/bin";
  }));
  EXPECT_TRUE(finds("/usr/lib/python3/dist-packages", [](FakeSystem& s) {
    s.files["/usr/bin/python3"];
    s.variables["PATH"] = "/usr/bin";
  }));
  EXPECT_TRUE(finds("/home/u/.local/lib/python3.12/site-packages",
                    [](FakeSystem& s) { s.variables["HOME"] = "/home/u"; }));
  EXPECT_TRUE(
      finds("/somewhere", [](FakeSystem& s) { s.variables["PYTHONPATH"] = "/x:/somewhere"; }));
  EXPECT_TRUE(finds("/p/site-packages",
                    [](FakeSystem& s) { s.own = "/p/site-packages/batten/lib/libbatten.so"; }));
  EXPECT_FALSE(finds("/other/site-packages", [](FakeSystem&) {}));
}

TEST(CudnnLibrary, AnUnloadableFileGivesTheLoadersReason) {
  FakeSystem system;
  const std::string path = system.install("/usr/local/cuda/lib64");
  system.files[path].loads = false;
  const Library found = find_library(system);
  EXPECT_FALSE(found.usable());
  EXPECT_NE(found.reason.find("invalid ELF header"), std::string::npos);
}

}  // namespace
}  // namespace batten::impl::cudnn
