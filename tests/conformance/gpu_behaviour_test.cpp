// What §2 says of streams, threads, graphs, devices and memory: on every backend of the GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conformance.hpp"
#include "cuda_support.hpp"
#include "gpu_call.hpp"
#include "gpu_test.hpp"

namespace batten::conformance {
namespace {

const Device kGpu = Device::cuda(0);

std::vector<std::string> gpu_backends() {
  std::vector<std::string> names;
  for (const Served& served : served_backends())
    if (served.on(DeviceType::cuda) && served.name != "reference") names.push_back(served.name);
  // They need scratch.
  names.push_back("native:divided");
  names.push_back("native:joined");
  return names;
}

Case dense_case(const std::string& name, DType dtype = bf16) {
  Case one;
  one.name = name;
  one.problem = {.dtype = dtype, .num_heads = 6, .num_kv_heads = 2, .head_dim = 128};
  one.batch = 3;
  one.q = 200;
  one.kv = 700;
  return one;
}

Case packed_case(const std::string& name) {
  Case one = dense_case(name);
  one.problem.mask = Mask::causal;
  one.form = Form::packed;
  one.q_lengths = {200, 1, 77};
  one.kv_lengths = {300, 64, 500};
  return one;
}

class GpuBehaviour : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { SKIP_UNLESS_AVAILABLE(GetParam(), kGpu); }

  Attention attention(const Problem& problem, Device device = kGpu) const {
    return Attention(problem, device, {.backend = GetParam()});
  }
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuBehaviour, testing::ValuesIn(gpu_backends()),
                         [](const auto& backend) {
                           std::string name = backend.param;
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

// ---- streams and threads -----------------------------------------------------

TEST_P(GpuBehaviour, TwoStreamsAtOnceWithOneShape) {
  for (const auto& make : {dense_case("streams", bf16), packed_case("streams")}) {
    GpuCall first(make, kGpu);
    GpuCall second(make, kGpu);
    first.load("streams/first");
    second.load("streams/second");
    Attention layer = attention(first.problem());
    const CudaStream a, b;
    for (int turn = 0; turn < 20; ++turn) {
      first.forward(layer, a.get());
      second.forward(layer, b.get());
    }
    a.synchronize();
    b.synchronize();
    first.expect_right("first stream");
    second.expect_right("second stream");
  }
}

TEST_P(GpuBehaviour, EightThreadsShareOneObject) {
  constexpr std::size_t kThreads = 8;
  Attention shared = attention(dense_case("").problem);
  std::vector<std::unique_ptr<GpuCall>> calls;
  for (std::size_t i = 0; i < kThreads; ++i) {
    Case one = dense_case(fmt::format("threads/{}", i));
    one.q += static_cast<std::int64_t>(i / 2) * 37;  // pairs of threads share a shape
    calls.push_back(std::make_unique<GpuCall>(one, kGpu));
  }
  std::latch start(kThreads);
  std::vector<std::string> failures(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      try {
        const CudaStream stream;
        for (int turn = 0; turn < 10; ++turn) calls[i]->forward(shared, stream.get());
        stream.synchronize();
      } catch (const Error& error) {
        failures[i] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kThreads; ++i) {
    EXPECT_EQ(failures[i], "");
    calls[i]->expect_right(fmt::format("thread {}", i));
  }
}

// ---- plans -------------------------------------------------------------------

TEST_P(GpuBehaviour, ProblemsOfOneShapeDoNotShareAPlan) {
  std::vector<std::unique_ptr<GpuCall>> calls;
  for (const DType dtype : {bf16, f16})
    for (const Mask mask : {Mask::none, Mask::causal, Mask::causal_top_left}) {
      Case one = dense_case(fmt::format("plans/{}/{}", name_of(dtype), name_of(mask)), dtype);
      one.problem.mask = mask;
      calls.push_back(std::make_unique<GpuCall>(one, kGpu));
    }
  for (int turn = 0; turn < 2; ++turn)
    for (const auto& call : calls) {
      Attention layer = attention(call->problem());
      call->clear();
      call->forward(layer, nullptr);
      synchronize(kGpu);
      call->expect_right(fmt::format("turn {}", turn));
    }
}

TEST_P(GpuBehaviour, AfterPrepareForwardNeitherAllocatesNorBuilds) {
  for (const auto& make : {dense_case("prepared"), packed_case("prepared")}) {
    GpuCall call(make, kGpu);
    Attention layer = attention(call.problem());
    const CudaStream stream;
    call.prepare(layer, stream.get());
    std::size_t before = 0, after = 0, total = 0;
    synchronize(kGpu);
    cuda_check(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
    for (int turn = 0; turn < 5; ++turn)
      EXPECT_TRUE(call.forward(layer, stream.get()).plan_reused()) << "turn " << turn;
    stream.synchronize();
    cuda_check(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
    EXPECT_EQ(before, after);
    call.expect_right("after prepare");
  }
}

// ---- graphs ------------------------------------------------------------------

class Graph {
 public:
  // Records one forward. In global mode any call that synchronises or allocates, on any thread,
  // spoils the capture.
  Graph(GpuCall& call, Attention& attention, const CudaStream& stream, cudaStreamCaptureMode mode) {
    cuda_check(cudaStreamBeginCapture(stream.get(), mode), "cudaStreamBeginCapture");
    std::string failure;
    try {
      call.forward(attention, stream.get());
    } catch (const Error& error) {
      failure = error.what();
    }
    const cudaError_t status = cudaStreamEndCapture(stream.get(), &graph_);
    if (!failure.empty()) throw Error(ErrorCode::Internal, "in capture: " + failure);
    cuda_check(status, "cudaStreamEndCapture");
    cuda_check(cudaGraphInstantiate(&exec_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    if (exec_) (void)cudaGraphExecDestroy(exec_);
    if (graph_) (void)cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(const CudaStream& stream) {
    cuda_check(cudaGraphLaunch(exec_, stream.get()), "cudaGraphLaunch");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

TEST_P(GpuBehaviour, CapturedCallReplaysWithNewContents) {
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal})
    for (const auto& make : {dense_case("graph"), packed_case("graph")}) {
      GpuCall call(make, kGpu);
      Attention layer = attention(call.problem());
      const CudaStream stream;
      call.prepare(layer, stream.get());
      Graph graph(call, layer, stream, mode);
      for (const char* contents : {"graph/first", "graph/second"}) {
        call.load(contents);
        graph.launch(stream);
        stream.synchronize();
        call.expect_right(contents);
      }
    }
}

TEST_P(GpuBehaviour, GraphKeepsItsScratchWhileOthersRun) {
  GpuCall captured(dense_case("scratch/captured"), kGpu);
  GpuCall other(dense_case("scratch/other"), kGpu);
  Attention layer = attention(captured.problem());
  const CudaStream stream, aside;
  captured.prepare(layer, stream.get());
  Graph graph(captured, layer, stream, cudaStreamCaptureModeThreadLocal);
  trim();  // what a graph uses is not idle
  for (int turn = 0; turn < 20; ++turn) {
    graph.launch(stream);
    other.forward(layer, aside.get());
  }
  stream.synchronize();
  aside.synchronize();
  captured.expect_right("captured");
  other.expect_right("eager");
}

// ---- devices -----------------------------------------------------------------

TEST_P(GpuBehaviour, EveryDeviceWorksWhicheverIsCurrent) {
  const int count = cuda_device_count();
  for (int target = 0; target < count; ++target)
    for (int current = 0; current < count; ++current) {
      cuda_check(cudaSetDevice(current), "cudaSetDevice");
      GpuCall call(dense_case(fmt::format("devices/{}", target)), Device::cuda(target));
      Attention layer = attention(call.problem(), Device::cuda(target));
      call.prepare(layer, nullptr);
      call.forward(layer, nullptr);
      int after = -1;
      cuda_check(cudaGetDevice(&after), "cudaGetDevice");
      EXPECT_EQ(after, current);
      synchronize(Device::cuda(target));
      call.expect_right(fmt::format("on {} with {} current", target, current));
    }
  cuda_check(cudaSetDevice(0), "cudaSetDevice");
}

TEST_P(GpuBehaviour, CpuTensorsAreRefused) {
  Attention layer = attention(dense_case("").problem);
  DeviceTensor host(Device::cpu(), bf16, contiguous_layout({1, 4, 6, 128}));
  DeviceTensor keys(Device::cpu(), bf16, contiguous_layout({1, 4, 2, 128}));
  DeviceTensor out(Device::cpu(), bf16, contiguous_layout({1, 4, 6, 128}));
  try {
    layer.forward(host.view(), keys.view(), keys.view(), out.view());
    ADD_FAILURE() << "took tensors of the CPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
  }
}

TEST_P(GpuBehaviour, MisalignedTensorsAreRefusedWithTheReason) {
  Attention layer = attention(dense_case("").problem);
  const DeviceTensor q(kGpu, bf16, strided_layout({1, 4, 6, 128}, {3072, 768, 128, 1}, 132));
  const DeviceTensor odd(kGpu, bf16, strided_layout({1, 4, 6, 128}, {3108, 777, 129, 1}));
  const DeviceTensor kv(kGpu, bf16, contiguous_layout({1, 4, 2, 128}));
  const DeviceTensor out(kGpu, bf16, contiguous_layout({1, 4, 6, 128}));
  for (const DeviceTensor* bad : {&q, &odd}) {
    try {
      layer.forward(bad->view(), kv.view(), kv.view(), out.view());
      ADD_FAILURE() << "took a misaligned tensor";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::InvalidArgument ||
                  error.code() == ErrorCode::Unsupported);
      EXPECT_NE(std::string(error.what()).find("16 bytes"), std::string::npos) << error.what();
    }
  }
}

// ---- memory ------------------------------------------------------------------

TEST_P(GpuBehaviour, NoScratchIsOutOfMemoryAndNamesTheBytes) {
  GpuCall call(packed_case("memory"), kGpu);
  Attention layer = attention(call.problem());
  const std::uint64_t bytes = call.prepare(layer, nullptr);
  if (bytes == 0) return;  // needs none, so that none can be missing
  synchronize(kGpu);
  trim();
  capi::check(batten_set_allocator(
      [](void*, batten_device, std::size_t, void*) -> void* { return nullptr; },
      [](void*, batten_device, void*, std::size_t, void*) {}, nullptr));
  try {
    call.forward(layer, nullptr);
    ADD_FAILURE() << "ran without scratch";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OutOfMemory) << error.what();
    EXPECT_NE(std::string(error.what()).find("bytes"), std::string::npos) << error.what();
  }
  capi::check(batten_set_allocator(nullptr, nullptr, nullptr));
  call.forward(layer, nullptr);
  synchronize(kGpu);
  call.expect_right("with scratch again");
}

// ---- lengths on the device ---------------------------------------------------

TEST_P(GpuBehaviour, CheckModeReportsDeviceLengthsOutOfRange) {
  const Case one = dense_case("check");
  if (find_served(GetParam())->may_refuse.contains("device_lengths")) return;
  const DeviceTensor q(kGpu, bf16, contiguous_layout({3, 200, 6, 128}));
  const DeviceTensor kv(kGpu, bf16, contiguous_layout({3, 700, 2, 128}));
  const DeviceTensor out(kGpu, bf16, contiguous_layout({3, 200, 6, 128}));
  DeviceTensor lengths(kGpu, DType::i32, contiguous_layout({3}));
  lengths.upload(std::vector<std::int32_t>{700, 701, 5});
  setenv("BATTEN_CHECK", "1", 1);
  Attention layer = attention(one.problem);
  setenv("BATTEN_CHECK", "0", 1);
  try {
    layer.forward(q.view(), kv.view(), kv.view(), out.view(),
                  {.kv_lengths = lengths.view(), .padding_is_finite = true});
    ADD_FAILURE() << "did not report";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    EXPECT_NE(std::string(error.what()).find("701"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace batten::conformance
