// Plan files: what is written comes back, and nothing else does.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "backends/cudnn/plan_file.hpp"
#include "fakes/environment.hpp"

namespace batten::impl::cudnn {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "batten-plans-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Bytes read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

void write(const fs::path& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

const Bytes kPlan = {1, 2, 3, 0, 255};
constexpr const char* kKey = "device=NVIDIA H200 graph: a";

TEST(CudnnPlanFile, RoundTrip) {
  const Folder folder;
  EXPECT_FALSE(load_plan(folder.path(), kKey));
  store_plan(folder.path(), kKey, kPlan);
  EXPECT_EQ(load_plan(folder.path(), kKey), kPlan);
  EXPECT_FALSE(load_plan(folder.path(), "another key"));

  // Replaced as a whole.
  const Bytes other(100'000, 7);
  store_plan(folder.path(), kKey, other);
  EXPECT_EQ(load_plan(folder.path(), kKey), other);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(CudnnPlanFile, MakesItsFolderPrivateFiles) {
  const Folder folder;
  const fs::path deep = folder.path() / "a" / "b";
  store_plan(deep, kKey, kPlan);
  EXPECT_EQ(load_plan(deep, kKey), kPlan);
  struct stat status {};
  ASSERT_EQ(::stat(plan_path(deep, kKey).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
}

TEST(CudnnPlanFile, AFolderThatCannotBeWrittenIsNoError) {
  store_plan("/proc/nowhere", kKey, kPlan);
  EXPECT_FALSE(load_plan("/proc/nowhere", kKey));
}

TEST(CudnnPlanFile, EmptyPlansAreNotKept) {
  const Folder folder;
  store_plan(folder.path(), kKey, {});
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(CudnnPlanFile, DamageIsNoticed) {
  const Bytes good = encode_plan(kKey, kPlan);
  std::string why;
  EXPECT_EQ(decode_plan(kKey, good, why), kPlan);
  for (std::size_t at = 0; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= 0x20;
    EXPECT_FALSE(decode_plan(kKey, bad, why)) << at;
    EXPECT_FALSE(why.empty());
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(
        decode_plan(kKey, Bytes(good.begin(), good.begin() + static_cast<long>(length)), why));
  }
  Bytes longer = good;
  longer.push_back(0);
  EXPECT_FALSE(decode_plan(kKey, longer, why));
  EXPECT_FALSE(decode_plan("device=NVIDIA H200 graph: b", good, why));
  EXPECT_NE(why.find("another plan"), std::string::npos);
  EXPECT_FALSE(decode_plan(kKey, encode_plan(kKey, {}), why));
}

RC_GTEST_PROP(CudnnPlanFile, AnyBytesAreRefusedOrOurs, (const Bytes& bytes)) {
  std::string why;
  RC_ASSERT(!decode_plan(kKey, bytes, why));
}

TEST(CudnnPlanFile, ADamagedFileIsLeftAloneAndReplaced) {
  const Folder folder;
  store_plan(folder.path(), kKey, kPlan);
  const fs::path path = plan_path(folder.path(), kKey);
  Bytes bytes = read(path);
  bytes.back() ^= 1;
  write(path, bytes);
  EXPECT_FALSE(load_plan(folder.path(), kKey));
  store_plan(folder.path(), kKey, kPlan);
  EXPECT_EQ(load_plan(folder.path(), kKey), kPlan);
}

TEST(CudnnPlanFile, FilesThatOthersMayWriteAreNotRun) {
  const Folder folder;
  store_plan(folder.path(), kKey, kPlan);
  const fs::path path = plan_path(folder.path(), kKey);
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  EXPECT_FALSE(load_plan(folder.path(), kKey));
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_EQ(load_plan(folder.path(), kKey), kPlan);
}

TEST(CudnnPlanFile, OddThingsInItsPlace) {
  const Folder folder;
  fs::create_directories(plan_path(folder.path(), kKey));
  EXPECT_FALSE(load_plan(folder.path(), kKey));
  store_plan(folder.path(), kKey, kPlan);  // cannot replace a folder
  EXPECT_FALSE(load_plan(folder.path(), kKey));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(CudnnPlanFile, WhereTheFolderIs) {
  using batten::testing::ScopedVariable;
  const ScopedVariable home("HOME", "/home/u");
  const ScopedVariable off("BATTEN_PLAN_CACHE", std::nullopt);
  const ScopedVariable own("BATTEN_CACHE_DIR", std::nullopt);
  const ScopedVariable xdg("XDG_CACHE_HOME", std::nullopt);
  EXPECT_EQ(plan_folder(), "/home/u/.cache/batten/cudnn");
  {
    const ScopedVariable set("XDG_CACHE_HOME", "/cache");
    EXPECT_EQ(plan_folder(), "/cache/batten/cudnn");
    const ScopedVariable set_own("BATTEN_CACHE_DIR", "/b");
    EXPECT_EQ(plan_folder(), "/b/cudnn");
    const ScopedVariable set_off("BATTEN_PLAN_CACHE", "off");
    EXPECT_FALSE(plan_folder());
  }
  const ScopedVariable no_home("HOME", std::nullopt);
  EXPECT_FALSE(plan_folder());
}

TEST(CudnnPlanFile, KeysNameAllThatAPlanDependsOn) {
  const PlanOrigin origin{"NVIDIA H200", 90, 132, 91900, 91900, 13000, "1.23.0"};
  const std::string key = plan_file_key(origin, "g");
  const auto differs = [&](auto change) {
    PlanOrigin other = origin;
    change(other);
    return plan_file_key(other, "g") != key;
  };
  EXPECT_TRUE(differs([](PlanOrigin& o) { o.device = "NVIDIA H100"; }));
  EXPECT_TRUE(differs([](PlanOrigin& o) { o.arch = 100; }));
  EXPECT_TRUE(differs([](PlanOrigin& o) { o.multiprocessors = 114; }));
  EXPECT_TRUE(differs([](PlanOrigin& o) { o.cudnn_version = 92000; }));
  EXPECT_TRUE(differs([](PlanOrigin& o) { o.compiled_version = 92000; }));
  EXPECT_TRUE(differs([](PlanOrigin& o) { o.cuda_version = 12090; }));
  EXPECT_TRUE(differs([](PlanOrigin& o) { o.frontend_version = "1.24.0"; }));
  EXPECT_NE(plan_file_key(origin, "h"), key);
  EXPECT_NE(plan_path("/f", "a"), plan_path("/f", "b"));
}

}  // namespace
}  // namespace batten::impl::cudnn
