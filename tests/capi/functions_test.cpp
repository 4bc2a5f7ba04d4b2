// Every exported function with good and bad arguments.
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "capi/capi_test.hpp"

namespace batten::testing {
namespace {

// ---- names
// ------------------------------------------------------------------------------------------

TEST(Capi, TheVersionIsThatOfTheHeader) {
  const std::string expected = std::to_string(BATTEN_VERSION_MAJOR) + "." +
                               std::to_string(BATTEN_VERSION_MINOR) + "." +
                               std::to_string(BATTEN_VERSION_PATCH);
  EXPECT_EQ(batten_version(), expected);
}

TEST(Capi, EveryStatusHasItsName) {
  EXPECT_STREQ(batten_status_name(BATTEN_OK), "Ok");
  EXPECT_STREQ(batten_status_name(BATTEN_INVALID_ARGUMENT), "InvalidArgument");
  EXPECT_STREQ(batten_status_name(BATTEN_UNSUPPORTED), "Unsupported");
  EXPECT_STREQ(batten_status_name(BATTEN_UNAVAILABLE), "Unavailable");
  EXPECT_STREQ(batten_status_name(BATTEN_OUT_OF_MEMORY), "OutOfMemory");
  EXPECT_STREQ(batten_status_name(BATTEN_DEVICE_ERROR), "Device");
  EXPECT_STREQ(batten_status_name(BATTEN_INTERNAL), "Internal");
  for (const int unknown : {-1, 7, 1000, INT32_MIN, INT32_MAX}) {
    EXPECT_STREQ(batten_status_name(unknown), "Unknown") << unknown;
  }
}

// ---- batten_attention_create
// --------------------------------------------------------------------------

TEST_F(CapiTest, CreateGivesAnAttention) {
  const batten_problem problem = good_problem();
  batten_attention* attention = nullptr;
  const int status = batten_attention_create(&problem, kCudaZero, nullptr, &attention);
  expect_status(status, BATTEN_OK, {});
  ASSERT_NE(attention, nullptr);
  batten_attention_destroy(attention);
}

TEST_F(CapiTest, CreateNeedsItsPointers) {
  const batten_problem problem = good_problem();
  expect_status(batten_attention_create(&problem, kCudaZero, nullptr, nullptr),
                BATTEN_INVALID_ARGUMENT, {"out: null pointer"});
  batten_attention* attention = reinterpret_cast<batten_attention*>(std::uintptr_t{1});
  expect_status(batten_attention_create(nullptr, kCudaZero, nullptr, &attention),
                BATTEN_INVALID_ARGUMENT, {"problem: null pointer"});
  EXPECT_EQ(attention, nullptr) << "nothing to destroy after a failure";
}

TEST_F(CapiTest, CreateReportsEachKindOfRefusal) {
  batten_attention* attention = reinterpret_cast<batten_attention*>(std::uintptr_t{1});
  const auto create_with = [&](const batten_problem& problem, batten_device device,
                               const char* backend, int threads = 0) {
    batten_options options{};
    options.struct_size = sizeof(options);
    options.backend = backend;
    options.num_threads = threads;
    attention = reinterpret_cast<batten_attention*>(std::uintptr_t{1});
    const int status = batten_attention_create(&problem, device, &options, &attention);
    EXPECT_EQ(attention, nullptr);
    return status;
  };
  const batten_problem good = good_problem();
  expect_status(create_with(good_problem(DType::bf16, 5, 2), kCudaZero, nullptr),
                BATTEN_INVALID_ARGUMENT, {"num_heads (5)", "num_kv_heads (2)"});
  expect_status(create_with(good, kCudaZero, "flash"), BATTEN_INVALID_ARGUMENT,
                {"unknown backend 'flash'", "auto, native"});
  expect_status(create_with(good, {BATTEN_CUDA, 9}, nullptr), BATTEN_UNAVAILABLE,
                {"cuda:9", "2 CUDA devices"});
  expect_status(create_with(good, {5, 0}, nullptr), BATTEN_INVALID_ARGUMENT, {"device type 5"});
  expect_status(create_with(good, kCudaZero, nullptr, -2), BATTEN_INVALID_ARGUMENT,
                {"num_threads is -2"});
  native.refuse_problems("head dim 64");
  expect_status(create_with(good, kCudaZero, "native"), BATTEN_UNSUPPORTED, {"head dim 64"});
  native.unavailable("no driver", "install one");
  expect_status(create_with(good, kCudaZero, "native"), BATTEN_UNAVAILABLE,
                {"no driver; install one"});
  batten_problem unknown_mask = good;
  unknown_mask.mask = 42;
  expect_status(create_with(unknown_mask, kCudaZero, nullptr), BATTEN_UNSUPPORTED,
                {"mask kind 42"});
}

TEST_F(CapiTest, DestroyTakesNull) { batten_attention_destroy(nullptr); }

// ---- batten_prepare and batten_forward
// ------------------------------------------------------------------

TEST_F(CapiTest, PrepareGivesTheScratchThatForwardNeeds) {
  native.answers().plan_info.workspace_size = 12345;
  const Handle attention = create();
  uint64_t bytes = 0;
  expect_status(batten_prepare(attention.get(), &call_.raw, &bytes), BATTEN_OK, {});
  EXPECT_EQ(bytes, 12345u);
  expect_status(batten_prepare(attention.get(), &call_.raw, nullptr), BATTEN_OK, {});
  EXPECT_TRUE(native.runs().empty());
}

TEST_F(CapiTest, PrepareNeedsItsPointers) {
  const Handle attention = create();
  uint64_t bytes = 77;
  expect_status(batten_prepare(nullptr, &call_.raw, &bytes), BATTEN_INVALID_ARGUMENT,
                {"attention: null pointer"});
  expect_status(batten_prepare(attention.get(), nullptr, &bytes), BATTEN_INVALID_ARGUMENT,
                {"call: null pointer"});
  call_.raw.k = nullptr;
  expect_status(batten_prepare(attention.get(), &call_.raw, &bytes), BATTEN_INVALID_ARGUMENT,
                {"k: missing tensor"});
  EXPECT_EQ(bytes, 77u) << "untouched by a failure";
}

TEST_F(CapiTest, ForwardRunsAndFillsTheReceipt) {
  const Handle attention = create();
  batten_receipt receipt{};
  receipt.struct_size = sizeof(receipt);
  expect_status(batten_forward(attention.get(), &call_.raw, &receipt), BATTEN_OK, {});
  EXPECT_STREQ(receipt.backend, "native");
  EXPECT_STREQ(receipt.kernel, "fake_kernel");
  EXPECT_STREQ(receipt.tile, "128x64");
  EXPECT_EQ(receipt.splits, 1);
  EXPECT_EQ(receipt.plan_reused, 0);
  expect_status(batten_forward(attention.get(), &call_.raw, nullptr), BATTEN_OK, {});
  EXPECT_EQ(native.runs().size(), 2u);
}

TEST_F(CapiTest, ForwardNeedsItsPointers) {
  const Handle attention = create();
  expect_status(batten_forward(nullptr, &call_.raw, nullptr), BATTEN_INVALID_ARGUMENT,
                {"attention: null pointer"});
  expect_status(batten_forward(attention.get(), nullptr, nullptr), BATTEN_INVALID_ARGUMENT,
                {"call: null pointer"});
  for (const batten_tensor** tensor : {&call_.raw.q, &call_.raw.k, &call_.raw.v, &call_.raw.out}) {
    const batten_tensor* kept = std::exchange(*tensor, nullptr);
    expect_status(batten_forward(attention.get(), &call_.raw, nullptr), BATTEN_INVALID_ARGUMENT,
                  {"missing tensor"});
    *tensor = kept;
  }
  EXPECT_TRUE(native.runs().empty());
}

TEST_F(CapiTest, ForwardChecksBeforeItRuns) {
  const Handle attention = create();
  call_.q.strides[3] = 2;
  expect_status(batten_forward(attention.get(), &call_.raw, nullptr), BATTEN_INVALID_ARGUMENT,
                {"q: the last dimension has stride 2"});
  call_.q.strides[3] = 1;
  call_.raw.has_scale = 1;
  call_.raw.scale = std::numeric_limits<double>::quiet_NaN();
  expect_status(batten_forward(attention.get(), &call_.raw, nullptr), BATTEN_INVALID_ARGUMENT,
                {"scale is nan"});
  EXPECT_TRUE(native.runs().empty());
}

// ---- batten_merge
// -------------------------------------------------------------------------------------

TEST(Capi, MergeCombinesTwoPartialResults) {
  float out = 1.0f, lse = 0.0f, out2 = 3.0f, lse2 = 0.0f;
  const auto at = [](float& value, std::vector<std::int64_t> shape) {
    return tensor_at(reinterpret_cast<std::uintptr_t>(&value), DType::f32, std::move(shape));
  };
  const batten_tensor t[] = {at(out, {1, 1, 1}), at(lse, {1, 1}), at(out2, {1, 1, 1}),
                             at(lse2, {1, 1})};
  expect_status(batten_merge(&t[0], &t[1], &t[2], &t[3], nullptr), BATTEN_OK, {});
  EXPECT_FLOAT_EQ(out, 2.0f);
  EXPECT_FLOAT_EQ(lse, 0.6931472f);
  EXPECT_EQ(out2, 3.0f);
}

TEST(Capi, MergeNeedsItsPointers) {
  float value = 0;
  const batten_tensor t =
      tensor_at(reinterpret_cast<std::uintptr_t>(&value), DType::f32, {1, 1, 1});
  const char* names[] = {"out: null", "lse: null", "out2: null", "lse2: null"};
  for (int missing = 0; missing < 4; ++missing) {
    const batten_tensor* all[] = {&t, &t, &t, &t};
    all[missing] = nullptr;
    expect_status(batten_merge(all[0], all[1], all[2], all[3], nullptr), BATTEN_INVALID_ARGUMENT,
                  {names[missing]});
  }
}

// ---- batten_info
// --------------------------------------------------------------------------------------

TEST_F(CapiTest, InfoIsJsonWithTheDocumentedKeys) {
  size_t needed = 0;
  expect_status(batten_info(nullptr, 0, &needed), BATTEN_OK, {});
  ASSERT_GT(needed, 1u);
  std::string text(needed, 'x');
  expect_status(batten_info(text.data(), text.size(), nullptr), BATTEN_OK, {});
  ASSERT_EQ(std::strlen(text.c_str()) + 1, needed);
  const auto json = nlohmann::json::parse(text.c_str());
  for (const char* key : {"batten", "cuda", "devices", "backends", "workspace", "plans"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["batten"]["version"], batten_version());
}

TEST_F(CapiTest, InfoIsCutToTheCallersSpace) {
  size_t needed = 0;
  ASSERT_EQ(batten_info(nullptr, 0, &needed), BATTEN_OK);
  std::string whole(needed, 'x');
  ASSERT_EQ(batten_info(whole.data(), needed, nullptr), BATTEN_OK);
  for (const size_t capacity : {size_t{1}, size_t{2}, size_t{10}, needed - 1}) {
    std::string part(needed + 8, 'x');
    size_t still_needed = 0;
    expect_status(batten_info(part.data(), capacity, &still_needed), BATTEN_OK, {});
    EXPECT_EQ(still_needed, needed);
    EXPECT_EQ(std::string(part.c_str()), whole.substr(0, capacity - 1));
    EXPECT_EQ(part[capacity], 'x') << "nothing behind the space";
  }
  std::string untouched = "xx";
  expect_status(batten_info(untouched.data(), 0, &needed), BATTEN_OK, {});
  EXPECT_EQ(untouched, "xx");
  expect_status(batten_info(nullptr, 100, nullptr), BATTEN_OK, {});
}

TEST_F(CapiTest, InfoReportsABadVariable) {
  const ScopedVariable threads("BATTEN_NUM_THREADS", "0");
  size_t needed = 0;
  expect_status(batten_info(nullptr, 0, &needed), BATTEN_INVALID_ARGUMENT,
                {"BATTEN_NUM_THREADS=0", "from 1 to"});
}

// ---- batten_explain
// -----------------------------------------------------------------------------------

class ExplainTest : public CapiTest {
 protected:
  ExplainTest() {
    native.takes(20);
    cudnn.takes(10);
    reference.takes(1);
  }

  int explain(const char* backend, const char* card, std::string* text) {
    batten_options options{};
    options.struct_size = sizeof(options);
    options.backend = backend;
    size_t needed = 0;
    const int status =
        batten_explain(&call_.problem, kCudaZero, &options, &call_.raw, card, nullptr, 0, &needed);
    if (status != BATTEN_OK) return status;
    std::string json(needed, 'x');
    const int again = batten_explain(&call_.problem, kCudaZero, &options, &call_.raw, card,
                                     json.data(), json.size(), nullptr);
    *text = json.c_str();
    return again;
  }
  nlohmann::json explained(const char* backend = nullptr) {
    std::string text;
    EXPECT_EQ(explain(backend, nullptr, &text), BATTEN_OK) << batten_last_error();
    return nlohmann::json::parse(text);
  }

  FakeBackend& cudnn = backends_.add("cudnn");
  FakeBackend& single = backends_.add("single");
  FakeBackend& reference = backends_.add("reference", /*automatic=*/false);
};

TEST_F(ExplainTest, SaysWhatAutoTakesAndRunsNothing) {
  single.refuse_shapes("too odd");
  const auto json = explained();
  EXPECT_EQ(json["device"], "cuda:0");
  EXPECT_EQ(json["card"]["name"], "Fake H100");
  EXPECT_EQ(json["card"]["multiprocessors"], 132);
  EXPECT_EQ(json["chosen"], "cudnn");
  EXPECT_EQ(json["reason"], "auto (default): cudnn 10 us, native 20 us (estimated constants)");
  ASSERT_EQ(json["candidates"].size(), 4u);
  EXPECT_EQ(json["candidates"][0]["backend"], "native");
  EXPECT_EQ(json["candidates"][0]["predicted_us"], 20);
  EXPECT_EQ(json["candidates"][0]["taken"], false);
  EXPECT_EQ(json["candidates"][1]["taken"], true);
  EXPECT_EQ(json["candidates"][2]["serves"], false);
  EXPECT_EQ(json["candidates"][2]["why"], "too odd");
  EXPECT_EQ(json["candidates"][3]["why"], "only when named");
  EXPECT_EQ(native.plans_built() + cudnn.plans_built(), 0);
}

TEST_F(ExplainTest, AgreesWithForward) {
  const Handle attention = create();
  batten_receipt receipt{};
  receipt.struct_size = sizeof(receipt);
  ASSERT_EQ(batten_forward(attention.get(), &call_.raw, &receipt), BATTEN_OK);
  const auto json = explained();
  EXPECT_EQ(json["chosen"], receipt.backend);
  EXPECT_EQ(json["reason"], receipt.reason);
}

TEST_F(ExplainTest, HeedsWhatIsAskedFor) {
  EXPECT_EQ(explained("native")["chosen"], "native");
  EXPECT_EQ(explained("native")["reason"], "asked for by option");
  native.refuse_shapes("no");
  EXPECT_TRUE(explained("native")["chosen"].is_null());
  native.unavailable("no kernels", "buy some");
  EXPECT_EQ(explained()["candidates"][0]["why"], "no kernels; buy some");
}

TEST_F(ExplainTest, NobodyServes) {
  for (FakeBackend* backend : {&native, &cudnn, &single}) backend->refuse_problems("no");
  EXPECT_TRUE(explained()["chosen"].is_null());
  EXPECT_EQ(explained()["reason"], "no backend serves this call");
}

TEST_F(ExplainTest, MistakesAreNamed) {
  std::string text;
  expect_status(explain("flash", nullptr, &text), BATTEN_INVALID_ARGUMENT, {"backend 'flash'"});
  expect_status(explain(nullptr, "h300", &text), BATTEN_INVALID_ARGUMENT, {"'h300'", "h200"});
  call_.k.shape[1] = -1;
  expect_status(explain(nullptr, nullptr, &text), BATTEN_INVALID_ARGUMENT, {"k: negative size"});
  expect_status(
      batten_explain(nullptr, kCudaZero, nullptr, &call_.raw, nullptr, nullptr, 0, nullptr),
      BATTEN_INVALID_ARGUMENT, {"problem: null pointer"});
  expect_status(
      batten_explain(&call_.problem, kCudaZero, nullptr, nullptr, nullptr, nullptr, 0, nullptr),
      BATTEN_INVALID_ARGUMENT, {"call: null pointer"});
  call_.problem.struct_size = 3;
  expect_status(explain(nullptr, nullptr, &text), BATTEN_INVALID_ARGUMENT, {"struct_size is 3"});
}

TEST_F(ExplainTest, ADeviceMustBeThereUnlessACardIsNamed) {
  TestCall far(good_problem(), Device::cuda(7));
  const auto status = [&](batten_device device, const char* card) {
    return batten_explain(&far.problem, device, nullptr, &far.raw, card, nullptr, 0, nullptr);
  };
  expect_status(status({BATTEN_CUDA, 7}, nullptr), BATTEN_UNAVAILABLE, {"cuda:7"});
  expect_status(status({BATTEN_CUDA, 7}, ""), BATTEN_UNAVAILABLE, {"cuda:7"});
  expect_status(status({BATTEN_CUDA, 7}, "h200"), BATTEN_OK, {});
  expect_status(status({BATTEN_CPU, 0}, "h200"), BATTEN_INVALID_ARGUMENT, {"a card is no CPU"});
}

// ---- batten_set_allocator and batten_trim
// -----------------------------------------------------------------

struct CountingAllocator {
  int allocations = 0;
  int frees = 0;
  static void* alloc(void* user, batten_device, size_t bytes, void*) {
    ++static_cast<CountingAllocator*>(user)->allocations;
    return std::aligned_alloc(256, bytes);
  }
  static void free(void* user, batten_device, void* data, size_t, void*) {
    ++static_cast<CountingAllocator*>(user)->frees;
    std::free(data);
  }
};

TEST_F(CapiTest, AnAllocatorIsAPair) {
  CountingAllocator counting;
  expect_status(batten_set_allocator(CountingAllocator::alloc, nullptr, &counting),
                BATTEN_INVALID_ARGUMENT, {"allocator", "both functions, or neither"});
  expect_status(batten_set_allocator(nullptr, CountingAllocator::free, &counting),
                BATTEN_INVALID_ARGUMENT, {"both functions, or neither"});
  expect_status(batten_set_allocator(nullptr, nullptr, nullptr), BATTEN_OK, {});
  native.answers().plan_info.workspace_size = 1000;
  const Handle attention = create();
  ASSERT_EQ(batten_forward(attention.get(), &call_.raw, nullptr), BATTEN_OK);
  EXPECT_EQ(counting.allocations, 0) << "half a pair is not installed";
}

TEST_F(CapiTest, TheAllocatorServesTheCallsAndTrimGivesBack) {
  native.answers().plan_info.workspace_size = 1000;
  const Handle attention = create();
  CountingAllocator counting;
  expect_status(batten_set_allocator(CountingAllocator::alloc, CountingAllocator::free, &counting),
                BATTEN_OK, {});
  ASSERT_EQ(batten_forward(attention.get(), &call_.raw, nullptr), BATTEN_OK);
  ASSERT_EQ(batten_forward(attention.get(), &call_.raw, nullptr), BATTEN_OK);
  EXPECT_EQ(counting.allocations, 1);
  EXPECT_EQ(counting.frees, 0);
  expect_status(batten_trim(), BATTEN_OK, {});
  EXPECT_EQ(counting.frees, 1);
  ASSERT_EQ(batten_forward(attention.get(), &call_.raw, nullptr), BATTEN_OK);
  expect_status(batten_set_allocator(nullptr, nullptr, nullptr), BATTEN_OK, {});
  EXPECT_EQ(counting.frees, 2) << "before the embedder may go";
  EXPECT_EQ(devices_->counts().allocations, 0);
}

}  // namespace
}  // namespace batten::testing
