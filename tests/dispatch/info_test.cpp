// What `batten info` is made of.
#include "dispatch/info.hpp"

#include <nlohmann/json.hpp>

#include "dispatch/dispatch_test.hpp"

namespace batten::testing {
namespace {

using nlohmann::json;

json info() { return json::parse(impl::info_json()); }

class InfoTest : public DispatchTest {
 protected:
  FakeBackend& cudnn = backends_.add("cudnn");
  FakeBackend& reference = backends_.add("reference", /*automatic=*/false);
};

TEST_F(InfoTest, NamesVersionsAndDevices) {
  const ScopedVariable threads("BATTEN_NUM_THREADS", "3");
  const json j = info();
  EXPECT_EQ(j.at("batten").at("version"), batten_version());
  EXPECT_EQ(j.at("batten").at("cuda_build"), BATTEN_WITH_CUDA != 0);
  EXPECT_EQ(j.at("cuda").at("runtime"), 13000);
  EXPECT_EQ(j.at("cuda").at("driver"), 13010);
  EXPECT_FALSE(j.at("cuda").contains("reason"));
  ASSERT_EQ(j.at("devices").size(), 3u);
  EXPECT_EQ(j.at("devices")[0], (json{{"name", "cpu"}, {"threads", 3}}));
  EXPECT_EQ(j.at("devices")[2], (json{{"name", "cuda:1"},
                                      {"model", "Fake H101"},
                                      {"compute_capability", "9.0"},
                                      {"multiprocessors", 132},
                                      {"memory_bytes", std::int64_t{80} << 30},
                                      {"l2_bytes", 50 << 20}}));
}

TEST_F(InfoTest, SaysWhyABackendIsNotAvailableAndWhatToDo) {
  cudnn.answers().forms = {"dense", "packed"};
  cudnn.answers().availability = [](Device device) {
    return device == kGpu ? impl::Availability{.available = true,
                                               .reason = "ignored",
                                               .remedy = "ignored",
                                               .library = "cuDNN 9.19 (/lib)"}
                          : impl::Availability{.available = false,
                                               .reason = "too old",
                                               .remedy = device.is_cpu() ? "" : "update",
                                               .library = {}};
  };
  const json backends = info().at("backends");
  ASSERT_EQ(backends.size(), 2u);
  EXPECT_EQ(backends[0].at("name"), "cudnn");
  EXPECT_EQ(backends[0].at("automatic"), true);
  EXPECT_EQ(backends[0].at("forms"), (json{"dense", "packed"}));
  EXPECT_EQ(backends[0].at("devices"),
            (json{{{"device", "cpu"}, {"available", false}, {"reason", "too old"}},
                  {{"device", "cuda:0"}, {"available", true}, {"library", "cuDNN 9.19 (/lib)"}},
                  {{"device", "cuda:1"},
                   {"available", false},
                   {"reason", "too old"},
                   {"remedy", "update"}}}));
  EXPECT_EQ(backends[1].at("name"), "reference");
  EXPECT_EQ(backends[1].at("automatic"), false);
  EXPECT_EQ(backends[1].at("forms"), json::array());
}

TEST_F(InfoTest, CountsPlansAndScratch) {
  cudnn.answers().plan_info.workspace_size = 100 * 1024;
  json j = info();
  EXPECT_EQ(j.at("plans"), 0);
  EXPECT_EQ(j.at("workspace").at("cap_bytes"), 128 << 20);
  EXPECT_EQ(j.at("workspace").at("pools"), json::array());
  TestCall call(good_problem(), Device::cuda(1));
  call.raw.stream = devices_->create_stream(1);
  auto a = attention(nullptr, Device::cuda(1));
  (void)forward(a, call.raw);
  j = info();
  EXPECT_EQ(j.at("plans"), 1);
  ASSERT_EQ(j.at("workspace").at("pools").size(), 1u);
  const json pool = j.at("workspace").at("pools")[0];
  EXPECT_EQ(pool.at("device"), "cuda:1");
  EXPECT_EQ(pool.at("stream"), devices_->stream_id(call.raw.stream));
  EXPECT_EQ(pool.at("bytes"), 128 * 1024);
}

TEST_F(InfoTest, TextThatIsNoUtf8IsShownAllTheSame) {
  cudnn.answers().availability = [](Device) {
    return impl::Availability{
        .available = true, .reason = {}, .remedy = {}, .library = "/opt/\xff\xfe/libcudnn.so.9"};
  };
  const json devices = info().at("backends")[0].at("devices");
  EXPECT_NE(devices[0].at("library").get<std::string>().find("libcudnn.so.9"), std::string::npos);
}

TEST(Info, OfAMachineWithoutDevicesExplainsItself) {
  const CleanEnvironment environment;
  FakeDevices none(0);
  FakeBackends backends;
  backends.add("cudnn").unavailable("no NVIDIA driver was found", "install one");
  const json j = info();
  EXPECT_EQ(j.at("cuda").at("reason"), "the fake machine has no device");
  EXPECT_EQ(j.at("devices").size(), 1u);
  const json devices = j.at("backends")[0].at("devices");
  ASSERT_EQ(devices.size(), 2u) << "what a user who expects a GPU would have to mend";
  EXPECT_EQ(devices[1], (json{{"device", "cuda:0"},
                              {"available", false},
                              {"reason", "no NVIDIA driver was found"},
                              {"remedy", "install one"}}));
}

TEST_F(InfoTest, NamesABadVariable) {
  const ScopedVariable threads("BATTEN_NUM_THREADS", "many");
  expect_error(ErrorCode::InvalidArgument, {"BATTEN_NUM_THREADS=many"}, [] { (void)info(); });
}

}  // namespace
}  // namespace batten::testing
