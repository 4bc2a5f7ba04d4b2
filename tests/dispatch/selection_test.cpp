// Which backend an attention takes, when it says no, and what the receipt says about it.
#include <stdexcept>

#include "dispatch/dispatch_test.hpp"

namespace batten::testing {
namespace {

class SelectionTest : public DispatchTest {
 protected:
  SelectionTest() { cudnn.answers().forms = {"dense", "packed"}; }

  FakeBackend& native = backends_.add("native");
  FakeBackend& cudnn = backends_.add("cudnn");
  FakeBackend& single = backends_.add("single");
  FakeBackend& reference = backends_.add("reference", /*automatic=*/false);
  TestCall call_{good_problem(), kGpu};
};

// ---- asked for by name
// ------------------------------------------------------------------------------

TEST_F(SelectionTest, TheNamedBackendRunsAndTheReceiptSaysWhoAsked) {
  auto a = attention("single");
  const batten_receipt receipt = forward(a, call_.raw);
  EXPECT_STREQ(receipt.backend, "single");
  EXPECT_STREQ(receipt.reason, "asked for by option");
  EXPECT_EQ(single.runs().size(), 1u);
  EXPECT_TRUE(native.runs().empty());
}

TEST_F(SelectionTest, TheEnvironmentIsReadAtConstruction) {
  std::optional<ScopedVariable> own(std::in_place, "BATTEN_BACKEND", "cudnn");
  auto a = attention();
  own.emplace("BATTEN_BACKEND", "single");
  const batten_receipt receipt = forward(a, call_.raw);
  EXPECT_STREQ(receipt.backend, "cudnn");
  EXPECT_STREQ(receipt.reason, "asked for by BATTEN_BACKEND=cudnn");
}

TEST_F(SelectionTest, AnUnknownNameFailsAtConstruction) {
  expect_error(ErrorCode::InvalidArgument,
               {"unknown backend 'flash'", "auto, native, cudnn, single, reference"},
               [&] { (void)attention("flash"); });
}

TEST_F(SelectionTest, AnUnavailableBackendFailsAtConstructionWithTheRemedy) {
  cudnn.unavailable("libcudnn.so.9 was not found", "install nvidia-cudnn-cu13");
  expect_error(ErrorCode::Unavailable,
               {"backend cudnn is not available on cuda:0", "libcudnn.so.9 was not found; install"},
               [&] { (void)attention("cudnn"); });
  cudnn.unavailable("it is too old", "");
  const std::string message =
      expect_error(ErrorCode::Unavailable, {"it is too old"}, [&] { (void)attention("cudnn"); });
  EXPECT_EQ(message.back(), 'd') << "no remedy, no empty clause: " << message;
}

TEST_F(SelectionTest, AvailabilityIsAskedForTheDeviceOfTheAttention) {
  native.answers().availability = [](Device device) {
    return impl::Availability{.available = device == Device::cuda(1),
                              .reason = "wrong card",
                              .remedy = {},
                              .library = {}};
  };
  EXPECT_NO_THROW((void)attention("native", Device::cuda(1)));
  expect_error(ErrorCode::Unavailable, {"native", "cuda:0", "wrong card"},
               [&] { (void)attention("native", Device::cuda(0)); });
  expect_error(ErrorCode::Unavailable, {"native", "on cpu", "wrong card"},
               [&] { (void)attention("native", Device::cpu()); });
}

TEST_F(SelectionTest, AProblemThatIsNotServedFailsAtConstructionWithTheBackendsThatCould) {
  native.unavailable("no kernels", "");
  cudnn.refuse_problems("head dim 72 is no multiple of 16");
  expect_error(ErrorCode::Unsupported,
               {"backend cudnn does not serve this problem", "head dim 72 is no multiple of 16",
                "backends that do: single, reference"},
               [&] { (void)attention("cudnn"); });
  single.refuse_problems("head dim 72");
  reference.unavailable("not on a GPU", "");
  expect_error(ErrorCode::Unsupported, {"cudnn", "no backend on this device does"},
               [&] { (void)attention("cudnn"); });
}

TEST_F(SelectionTest, WhatServesDependsOnTheProblem) {
  cudnn.answers().why_not_problem = [](const impl::Problem& p,
                                       Device device) -> std::optional<std::string> {
    if (p.head_dim > 64 && device == kGpu) return "head dim above 64";
    return std::nullopt;
  };
  EXPECT_NO_THROW((void)impl::Attention(good_problem(), kGpu, options_of("cudnn")));
  const batten_problem wide = good_problem(DType::bf16, 4, 2, 128);
  EXPECT_NO_THROW((void)impl::Attention(wide, Device::cuda(1), options_of("cudnn")));
  expect_error(ErrorCode::Unsupported, {"head dim above 64"},
               [&] { (void)impl::Attention(wide, kGpu, options_of("cudnn")); });
}

TEST_F(SelectionTest, AShapeThatIsNotServedFailsInTheCallWithTheBackendsThatCould) {
  cudnn.refuse_shapes("Sq 5 is odd");
  single.refuse_shapes("lengths on the device");
  auto a = attention("cudnn");
  for (const bool preparing : {true, false}) {
    expect_error(ErrorCode::Unsupported,
                 {"backend cudnn does not serve this call", "Sq 5 is odd",
                  "backends that do: native, reference"},
                 [&] { preparing ? (void)a.prepare(call_.raw) : (void)forward(a, call_.raw); });
  }
}

TEST_F(SelectionTest, AFormThatDoesNotServeIsNotOfferedAgain) {
  cudnn.answers().why_not_shape = [](const impl::Problem&, const impl::Shape&, Device,
                                     const impl::BackendOptions& options) {
    return options.form == "packed" ? std::optional<std::string>("not packed") : std::nullopt;
  };
  auto a = attention("cudnn:packed");
  expect_error(ErrorCode::Unsupported,
               {"not packed", "backends that do: native, single, reference"},
               [&] { (void)forward(a, call_.raw); });
}

TEST_F(SelectionTest, ANamedBackendNeverFallsBack) {
  cudnn.refuse_shapes("no");
  auto refuses = attention("cudnn");
  EXPECT_THROW((void)forward(refuses, call_.raw), Error);
  single.answers().on_plan = [] { throw Error(ErrorCode::OutOfMemory, "no room for the plan"); };
  auto fails = attention("single");
  expect_error(ErrorCode::OutOfMemory, {"no room for the plan"},
               [&] { (void)forward(fails, call_.raw); });
  EXPECT_EQ(native.plans_built() + cudnn.plans_built() + reference.plans_built(), 0);
  EXPECT_TRUE(native.runs().empty());
  EXPECT_TRUE(reference.runs().empty());
}

TEST_F(SelectionTest, TheFormAndTheThreadsReachTheBackend) {
  std::vector<impl::BackendOptions> seen;
  cudnn.answers().why_not_shape = [&](const impl::Problem&, const impl::Shape&, Device,
                                      const impl::BackendOptions& options) {
    seen.push_back(options);
    return std::optional<std::string>{};
  };
  impl::Attention a(good_problem(), kGpu, options_of("cudnn:packed", 7));
  (void)forward(a, call_.raw);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0], (impl::BackendOptions{.form = "packed", .num_threads = 7}));
}

// ---- auto
// -------------------------------------------------------------------------------------------

TEST_F(SelectionTest, AutoTakesTheFirstThatServes) {
  auto a = attention();
  const batten_receipt receipt = forward(a, call_.raw);
  EXPECT_STREQ(receipt.backend, "native");
  EXPECT_STREQ(receipt.reason, "auto (default): first that serves this call");
}

TEST_F(SelectionTest, AutoSaysWhyTheOthersWereNotTaken) {
  native.unavailable("compute capability 7.5", "buy a newer card");
  cudnn.refuse_problems("dtype float32");
  const ScopedVariable own("BATTEN_BACKEND", "auto");
  auto a = attention();
  const batten_receipt receipt = forward(a, call_.raw);
  EXPECT_STREQ(receipt.backend, "single");
  EXPECT_STREQ(receipt.reason,
               "auto (BATTEN_BACKEND=auto): first that serves this call; native: compute "
               "capability 7.5; cudnn: dtype float32");
}

TEST_F(SelectionTest, AutoChoosesAnewForEachShape) {
  native.answers().why_not_shape = [](const impl::Problem&, const impl::Shape& shape, Device,
                                      const impl::BackendOptions&) {
    return shape.max_q > 5 ? std::optional<std::string>("Sq above 5") : std::nullopt;
  };
  TestCall longer(good_problem(), kGpu, {.batch = 2, .q = 6, .kv = 7});
  auto a = attention();
  EXPECT_STREQ(forward(a, call_.raw).backend, "native");
  const batten_receipt receipt = forward(a, longer.raw);
  EXPECT_STREQ(receipt.backend, "cudnn");
  EXPECT_STREQ(receipt.reason, "auto (default): first that serves this call; native: Sq above 5");
  EXPECT_STREQ(forward(a, call_.raw).backend, "native");
  EXPECT_STREQ(forward(a, longer.raw).backend, "cudnn");
  EXPECT_EQ(native.runs().size(), 2u);
  EXPECT_EQ(cudnn.runs().size(), 2u);
}

TEST_F(SelectionTest, AutoNeverTakesTheOracle) {
  for (FakeBackend* backend : {&native, &cudnn, &single}) backend->unavailable("not today", "");
  expect_error(ErrorCode::Unsupported,
               {"auto: no backend on cuda:0 serves this problem", "native: not today",
                "cudnn: not today", "single: not today"},
               [&] { (void)attention(); });
  EXPECT_NO_THROW((void)attention("reference"));
}

TEST_F(SelectionTest, AutoWithoutABackendForTheShapeFailsInTheCall) {
  for (FakeBackend* backend : {&native, &cudnn, &single}) backend->refuse_shapes("too odd");
  auto a = attention();
  expect_error(ErrorCode::Unsupported,
               {"auto: no backend on cuda:0 serves this call", "native: too odd", "cudnn: too odd",
                "single: too odd"},
               [&] { (void)forward(a, call_.raw); });
  EXPECT_TRUE(reference.runs().empty());
}

TEST_F(SelectionTest, AutoGivesNoForm) {
  std::vector<impl::BackendOptions> seen;
  native.answers().why_not_shape = [&](const impl::Problem&, const impl::Shape&, Device,
                                       const impl::BackendOptions& options) {
    seen.push_back(options);
    return std::optional<std::string>{};
  };
  auto a = attention();
  (void)forward(a, call_.raw);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0], impl::BackendOptions{});
}

TEST_F(SelectionTest, AutoTakesTheFastestByPrediction) {
  native.takes(54);
  cudnn.takes(21.4);
  single.takes(300);
  auto a = attention();
  const batten_receipt receipt = forward(a, call_.raw);
  EXPECT_STREQ(receipt.backend, "cudnn");
  EXPECT_STREQ(receipt.reason,
               "auto (default): cudnn 21 us, native 54 us, single 300 us (estimated constants)");
}

TEST_F(SelectionTest, OfEqualTimesTheFirstIsTaken) {
  for (FakeBackend* backend : {&native, &cudnn, &single}) backend->takes(7);
  auto a = attention();
  EXPECT_STREQ(forward(a, call_.raw).backend, "native");
}

TEST_F(SelectionTest, WithoutAPredictionComesAfterThoseWithOne) {
  single.takes(1e6);
  auto a = attention();
  const batten_receipt receipt = forward(a, call_.raw);
  EXPECT_STREQ(receipt.backend, "single");
  EXPECT_STREQ(receipt.reason, "auto (default): single 1000000 us (estimated constants)");
}

TEST_F(SelectionTest, PredictionsAreAskedForOnceAShape) {
  int asked = 0;
  native.takes(5);
  cudnn.answers().predict_us = [&](const impl::Shape& shape) {
    ++asked;
    return shape.max_q > 5 ? 1.0 : 10.0;
  };
  TestCall longer(good_problem(), kGpu, {.batch = 2, .q = 6, .kv = 7});
  auto a = attention();
  for (int i = 0; i < 3; ++i) {
    EXPECT_STREQ(forward(a, call_.raw).backend, "native");
    EXPECT_STREQ(forward(a, longer.raw).backend, "cudnn");
  }
  EXPECT_EQ(asked, 2);
}

TEST_F(SelectionTest, OnTheCpuAndByNameNothingIsPredicted) {
  native.answers().predict_us = [](const impl::Shape&) -> std::optional<double> {
    ADD_FAILURE() << "was asked";
    return std::nullopt;
  };
  auto named = attention("native");
  EXPECT_STREQ(forward(named, call_.raw).backend, "native");
  TestCall on_cpu(good_problem(), Device::cpu());
  auto a = attention(nullptr, Device::cpu());
  EXPECT_STREQ(forward(a, on_cpu.raw).reason, "auto (default): first that serves this call");
}

TEST_F(SelectionTest, AutoGoesOnWhereAPlanFailsAndSaysSo) {
  native.takes(10);
  cudnn.takes(20);
  single.takes(30);
  native.answers().on_plan = [] { throw Error(ErrorCode::Unsupported, "no engine took it"); };
  cudnn.answers().on_plan = [] { throw std::runtime_error("a fault of the library's"); };
  auto a = attention();
  const batten_receipt receipt = forward(a, call_.raw);
  EXPECT_STREQ(receipt.backend, "single");
  EXPECT_STREQ(receipt.reason,
               "auto (default): native 10 us, cudnn 20 us, single 30 us (estimated constants); "
               "native failed: no engine took it; cudnn failed: a fault of the library's");
  EXPECT_STREQ(forward(a, call_.raw).backend, "single");
  EXPECT_EQ(native.plans_built(), 1) << "it is not tried at every call";
}

TEST_F(SelectionTest, TheLastFailureIsTheAnswer) {
  for (FakeBackend* backend : {&native, &cudnn, &single}) {
    backend->answers().on_plan = [] { throw Error(ErrorCode::OutOfMemory, "no room"); };
  }
  auto a = attention();
  expect_error(ErrorCode::OutOfMemory, {"no room"}, [&] { (void)forward(a, call_.raw); });
  EXPECT_EQ(native.plans_built() + cudnn.plans_built() + single.plans_built(), 3);
}

TEST_F(SelectionTest, TheCallersMistakeIsNotTriedElsewhere) {
  native.answers().on_plan = [] { throw Error(ErrorCode::InvalidArgument, "a wrong call"); };
  auto a = attention();
  expect_error(ErrorCode::InvalidArgument, {"a wrong call"}, [&] { (void)forward(a, call_.raw); });
  EXPECT_EQ(cudnn.plans_built(), 0);
}

// ---- devices and options
// ----------------------------------------------------------------------------

TEST_F(SelectionTest, ADeviceThatIsNotThereIsUnavailable) {
  expect_error(ErrorCode::Unavailable, {"cuda:2", "there are 2 CUDA devices"},
               [&] { (void)attention(nullptr, Device::cuda(2)); });
  expect_error(ErrorCode::Unavailable, {"cuda:-1", "there are 2 CUDA devices"},
               [&] { (void)attention(nullptr, Device::cuda(-1)); });
  EXPECT_NO_THROW((void)attention(nullptr, Device::cuda(1)));
}

TEST(Selection, CudaOnAMachineWithoutOneSaysWhy) {
  const CleanEnvironment environment;
  FakeDevices none(0);
  FakeBackends backends;
  backends.add("native");
  for (const char* backend : {static_cast<const char*>(nullptr), "native"}) {
    expect_error(ErrorCode::Unavailable, {"cuda:0", "the fake machine has no device"},
                 [&] { (void)impl::Attention(good_problem(), kGpu, options_of(backend)); });
  }
  EXPECT_NO_THROW((void)impl::Attention(good_problem(), Device::cpu(), options_of("native")));
}

TEST(Selection, OneDeviceIsCountedInTheSingular) {
  const CleanEnvironment environment;
  FakeDevices one(1);
  FakeBackends backends;
  backends.add("native");
  expect_error(ErrorCode::Unavailable, {"cuda:3: there is 1 CUDA device"},
               [] { (void)impl::Attention(good_problem(), Device::cuda(3), options_of(nullptr)); });
}

TEST_F(SelectionTest, ADeviceThatCannotBeIsRefused) {
  expect_error(ErrorCode::InvalidArgument, {"device type 7", "cpu or cuda"}, [&] {
    (void)attention(nullptr, Device{static_cast<DeviceType>(7), 0});
  });
  expect_error(ErrorCode::InvalidArgument, {"cpu:1", "index 0"}, [&] {
    (void)attention(nullptr, Device{DeviceType::cpu, 1});
  });
}

TEST_F(SelectionTest, BadOptionsFailAtConstruction) {
  expect_error(ErrorCode::InvalidArgument, {"num_threads is -1", "not be negative"},
               [] { (void)impl::Attention(good_problem(), kGpu, options_of(nullptr, -1)); });
  const ScopedVariable check("BATTEN_CHECK", "maybe");
  expect_error(ErrorCode::InvalidArgument, {"BATTEN_CHECK=maybe", "1 or 0"},
               [&] { (void)attention(); });
}

TEST_F(SelectionTest, BadProblemsFailAtConstructionBeforeABackendIsAsked) {
  native.answers().why_not_problem = [](const impl::Problem&,
                                        Device) -> std::optional<std::string> {
    ADD_FAILURE() << "was asked";
    return std::nullopt;
  };
  expect_error(ErrorCode::InvalidArgument, {"num_heads (5)", "num_kv_heads (2)"}, [] {
    (void)impl::Attention(good_problem(DType::bf16, 5, 2), kGpu, options_of(nullptr));
  });
}

}  // namespace
}  // namespace batten::testing
