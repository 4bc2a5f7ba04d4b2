// The cudnn backend against the real library: what cuDNN does at the edges that batten works
// around, printed for whoever moves to a new version, and what batten makes of it.
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>

#include "backends/cudnn/cudnn.hpp"
#include "backends/cudnn/graph.hpp"
#include "backends/cudnn/handle.hpp"
#include "backends/cudnn/library.hpp"
#include "backends/cudnn_scene.hpp"
#include "fakes/environment.hpp"

namespace batten::impl::cudnn {
namespace {

using batten::testing::ScopedVariable;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

constexpr Mask kMasks[] = {Mask::none, Mask::causal, Mask::causal_top_left};

class CudnnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_runtime().device_count() == 0) {
      GTEST_SKIP() << "no GPU: " << device_runtime().why_unavailable();
    }
    backend_ = make_cudnn();
    const Availability a = backend_->availability(device_);
    if (!a.available) GTEST_SKIP() << a.reason;
    check_cuda(cudaSetDevice(0), "cudaSetDevice");
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    static const bool printed = [&] { return std::printf("%s\n", a.library.c_str()) > 0; }();
    (void)printed;
  }
  void TearDown() override {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  // A scene on the device. Not asked: whether the backend would refuse it.
  struct Prepared {
    Scene scene;
    std::shared_ptr<const Plan> plan;
    DeviceBytes q, k, v, out, lse, workspace;
    std::vector<std::unique_ptr<DeviceBytes>> arrays;
    Call call;

    Prepared(const Scene& s, std::shared_ptr<const Plan> p, cudaStream_t stream)
        : scene(s),
          plan(std::move(p)),
          q(s.q),
          k(s.k),
          v(s.v),
          out(std::vector<std::uint16_t>(s.out_elements, kUntouched)),
          lse(std::vector<float>(s.lse_elements, kUntouchedLse)),
          workspace(plan->info().workspace_size) {
      call = scene.host_call();
      call.q = q.data();
      call.k = k.data();
      call.v = v.data();
      call.out = out.data();
      call.lse = scene.shape.lse ? lse.as<float>() : nullptr;
      call.stream = stream;
      const auto place = [&](Source source, const std::vector<std::int32_t>& values,
                             const std::int32_t*& pointer) {
        if (source != Source::device) return;
        arrays.push_back(std::make_unique<DeviceBytes>(values));
        pointer = arrays.back()->as<std::int32_t>();
      };
      place(s.shape.q_lengths, s.q_lengths, call.q_lengths);
      place(s.shape.kv_lengths, s.kv_lengths, call.kv_lengths);
      place(s.shape.offsets_q, s.offsets_q, call.offsets_q);
      place(s.shape.offsets_kv, s.offsets_kv, call.offsets_kv);
    }
    void run() const { plan->run(scene.shape, call, workspace.data()); }
    Difference difference(const Answer& answer) const {
      return compare(scene, answer, out.get<std::uint16_t>(), lse.get<float>());
    }
  };

  std::shared_ptr<const Plan> plan_for(const Scene& s, const std::string& form) {
    const BackendOptions options{.form = form, .num_threads = 0};
    return backend_->plan(s.problem, backend_->plan_key(s.problem, s.shape, options), device_,
                          options);
  }
  Prepared prepared(const Scene& s, const std::string& form = "") {
    return Prepared(s, plan_for(s, form), stream_);
  }
  void synchronize() { check_cuda(cudaStreamSynchronize(stream_), "running"); }

  Difference difference(const Scene& s, const Answer& answer, const std::string& form = "") {
    const Prepared p = prepared(s, form);
    p.run();
    synchronize();
    return p.difference(answer);
  }
  void expect_right(const Scene& s, const std::string& what, const std::string& form = "") {
    const Difference d = difference(s, answer_of(s), form);
    EXPECT_TRUE(d.none()) << what << ": " << d.wrong << " wrong (" << d.nans << " NaN), "
                          << d.touched << " touched; " << d.first;
  }
  bool promised(const Scene& s, const std::string& form) {
    return !backend_->why_not(s.problem, s.shape, device_, {.form = form, .num_threads = 0});
  }

  Device device_ = Device::cuda(0);
  std::unique_ptr<Backend> backend_;
  cudaStream_t stream_ = nullptr;
  ScopedVariable no_files_{"BATTEN_PLAN_CACHE", "off"};
};

// Rows [begin, end) of a tensor of `width` elements a row become NaN.
void poison(std::vector<std::uint16_t>& values, std::int64_t begin, std::int64_t end,
            std::int64_t width) {
  for (std::int64_t i = begin * width; i < end * width; ++i) {
    values[static_cast<std::size_t>(i)] = 0x7fff;  // NaN in both formats
  }
}

// Design §2.6. A call that the backend takes without padding_is_finite must not see the NaNs; of
// the others the test prints whether this version would show them.
TEST_F(CudnnDevice, WhatPaddingDoes) {
  for (const int dim : {64, 128}) {
    for (const Mask mask : kMasks) {
      const Problem p = make_problem(4, 2, dim, mask);
      const std::int64_t width = 2 * dim;
      const auto probe = [&](const char* form, const char* where, Scene s, auto&& damage) {
        const Answer answer = answer_of(s);
        for (const bool values : {true, false}) {
          Scene bad = s;
          damage(values ? bad.v : bad.k);
          const Difference d = difference(bad, answer, form);
          const bool taken = promised(bad, form);
          std::printf("padding: D=%d %-15s %-7s NaN in %s %-22s %s%s\n", dim, batten::name_of(mask),
                      form, values ? "V" : "K", where,
                      d.none() ? "no effect" : "REACHES THE OUTPUT",
                      taken ? "" : "  (batten asks for padding_is_finite)");
          if (taken) {
            EXPECT_TRUE(d.none()) << form << " " << where << ": " << d.first;
          }
        }
      };
      Scene s = bshd_scene(p, 2, 100, 200, 300);
      probe("dense", "past the buffer's end", s, [&](auto& t) { poison(t, 400, 700, width); });
      s = bshd_scene(p, 2, 100, 200, 300);
      s.shape.k.batch = s.shape.v.batch = 300 * width;  // 100 rows of gap after each sample
      probe("dense", "between samples", s, [&](auto& t) {
        poison(t, 200, 300, width);
        poison(t, 500, 700, width);
      });
      s = bshd_scene(p, 2, 100, 200);
      s.shape.kv_lengths = Source::device;
      s.kv_lengths = {150, 70};
      const auto past_lengths = [&](auto& t) {
        poison(t, 150, 200, width);
        poison(t, 270, 400, width);
      };
      if (mask != Mask::causal) probe("lengths", "past kv_lengths", s, past_lengths);
      probe("packed", "past kv_lengths", s, past_lengths);
      s = packed_scene(p, {0, 60, 110}, {0, 150, 220}, Source::device, 300);
      probe("packed", "past the last offset", s, [&](auto& t) { poison(t, 220, 520, width); });
      s.shape.kv_lengths = Source::device;
      s.kv_lengths = {140, 60};
      probe("packed", "in gaps", s, [&](auto& t) {
        poison(t, 140, 150, width);
        poison(t, 210, 220, width);
      });
    }
  }
}

// A sample's own NaN may not reach its neighbour.
TEST_F(CudnnDevice, WhatANeighbourDoes) {
  for (const char* form : {"dense", "packed"}) {
    Scene s = bshd_scene(make_problem(2, 2, 128, Mask::none), 2, 100, 200);
    Answer answer = answer_of(s);
    poison(s.v, 200, 201, 256);
    const Prepared p = prepared(s, form);
    p.run();
    synchronize();
    std::vector<std::uint16_t> out = p.out.get<std::uint16_t>();
    int nans = 0;
    for (std::size_t i = 0; i < 100 * 256; ++i) nans += std::isnan(s.value(out[i]));
    std::printf("neighbour: %-7s a NaN value of the next sample %s\n", form,
                nans == 0 ? "no effect" : "REACHES THIS ONE");
    if (promised(s, form)) {
      EXPECT_EQ(nans, 0);
    }
  }
}

// cuDNN itself on samples without queries or keys. batten relies on the first alone.
TEST_F(CudnnDevice, WhatEmptySamplesDo) {
  struct Kind {
    const char* what;
    std::vector<std::int32_t> lengths_q, lengths_kv;
  };
  const Kind kinds[] = {{"no query, one key", {20, 0, 20}, {30, 1, 30}},
                        {"no query, no key", {20, 0, 20}, {30, 0, 30}},
                        {"queries, no key", {20, 20, 20}, {30, 0, 30}}};
  for (const Mask mask : kMasks) {
    for (const Form form : {Form::packed, Form::lengths}) {
      const Problem problem = make_problem(4, 2, 128, mask);
      const Scene s = bshd_scene(problem, 3, 20, 30);
      Shape shape = s.shape;
      shape.kv_lengths = Source::device;
      const Shape key = plan_key(problem, shape, name_of(form));
      const GraphKey graph_of = graph_key(problem, key, form);
      void* const handle = thread_handle(0);
      std::unique_ptr<Graph> graph;
      {
        const BuildScope scope(handle);
        graph = build_graph(graph_of, handle, device_runtime().properties(0).arch());
      }
      for (const Kind& kind : kinds) {
        const std::vector<std::int64_t> rows_q = {0, 20, 40, 60}, rows_kv = {0, 30, 60, 90};
        const auto elements = [](std::vector<std::int64_t> rows, std::int64_t row) {
          for (auto& x : rows) x *= row;
          return rows;
        };
        const DeviceBytes q(s.q), k(s.k), v(s.v), lengths_q(kind.lengths_q),
            lengths_kv(kind.lengths_kv), oq(elements(rows_q, 512)), ok(elements(rows_kv, 256)),
            ol(elements(rows_q, 4)), out(std::vector<std::uint16_t>(s.out_elements, kUntouched)),
            lse(std::vector<float>(s.lse_elements, kUntouchedLse)), ws(graph->workspace_size());
        const auto scale = static_cast<float>(s.scale);
        const auto* offsets_q = oq.as<std::int64_t>();
        const auto* offsets_k = ok.as<std::int64_t>();
        set_stream(handle, stream_);
        graph->execute(handle,
                       {q.data(), k.data(), v.data(), out.data(), lse.as<float>(), &scale,
                        lengths_q.as<std::int32_t>(), lengths_kv.as<std::int32_t>(), offsets_q,
                        offsets_k, offsets_k, offsets_q, ol.as<std::int64_t>()},
                       ws.data());
        synchronize();
        const auto result = out.get<std::uint16_t>();
        int nans = 0, untouched = 0, zeros = 0;
        for (std::size_t i = 20 * 512; i < 40 * 512; ++i) {
          nans += std::isnan(s.value(result[i]));
          untouched += result[i] == kUntouched;
          zeros += result[i] == 0;
        }
        std::printf("empty: %-15s %-7s %-17s: %s\n", batten::name_of(mask), name_of(form),
                    kind.what,
                    nans > 0                ? "NaN"
                    : untouched == 20 * 512 ? "rows untouched"
                    : zeros == 20 * 512     ? "rows zeroed"
                                            : "rows written");
        int others = 0;
        for (std::size_t i = 0; i < result.size(); ++i) {
          if (i >= 20 * 512 && i < 40 * 512) continue;
          others += std::isnan(s.value(result[i])) || result[i] == kUntouched;
        }
        if (&kind == kinds) {
          EXPECT_EQ(others, 0) << "rows of the other samples";
          if (form == Form::packed) {
            EXPECT_EQ(untouched, 20 * 512);
          }
        }
      }
    }
  }
}

// The lengths form under the bottom-right diagonal, where a sample has more queries than keys:
// batten does not use it. If this prints "right", a version could.
TEST_F(CudnnDevice, WhatLengthsDoWithMoreQueriesThanKeys) {
  Scene s = bshd_scene(make_problem(4, 2, 128, Mask::causal), 2, 200, 200);
  s.shape.kv_lengths = Source::device;
  s.kv_lengths = {200, 70};
  const Difference d = difference(s, answer_of(s), "lengths");
  std::printf("bottom-right with lengths 200 x 70: rows that see keys are %s (%s)\n",
              d.none() ? "right" : "WRONG", d.first.c_str());
}

TEST_F(CudnnDevice, EveryFormAndMask) {
  for (const Mask mask : kMasks) {
    for (const auto& [q, kv] : {std::pair{70, 200}, std::pair{200, 70}, std::pair{1, 130}}) {
      const Problem p = make_problem(6, 2, 128, mask);
      Scene s = bshd_scene(p, 3, q, kv, 5);
      const std::string what =
          std::string(batten::name_of(mask)) + " " + std::to_string(q) + "x" + std::to_string(kv);
      expect_right(s, what + " dense");
      expect_right(s, what + " packed", "packed");
      s.shape.q_lengths = Source::host;
      s.shape.kv_lengths = Source::device;
      s.q_lengths = {q, q > 1 ? q / 2 : 0, q};
      s.kv_lengths = {kv, kv / 2 + 1, 0};
      expect_right(s, what + " lengths");
      expect_right(s, what + " packed with lengths", "packed");
    }
  }
}

TEST_F(CudnnDevice, PackedRagged) {
  for (const Mask mask : kMasks) {
    for (const Source source : {Source::host, Source::device}) {
      const Problem p = make_problem(6, 2, 64, mask, DType::f16);
      Scene s =
          packed_scene(p, {2, 100, 100, 101, 301, 330}, {0, 60, 90, 190, 190, 400}, source, 7);
      expect_right(s, "ragged");
      s.shape.q_lengths = s.shape.kv_lengths = Source::host;
      s.q_lengths = {90, 0, 1, 150, 29};
      s.kv_lengths = {60, 10, 0, 0, 180};
      expect_right(s, "ragged with gaps");
      s.shape.lse = false;
      s.lse_elements = 0;
      const Prepared run = prepared(s);
      run.run();
      synchronize();
    }
  }
}

// More samples than the parameters of one launch hold.
TEST_F(CudnnDevice, ManySamplesFromTheHost) {
  std::vector<std::int32_t> q = {0}, kv = {0};
  for (int b = 0; b < 1000; ++b) {
    q.push_back(q.back() + b % 3);
    kv.push_back(kv.back() + b % 5);
  }
  expect_right(packed_scene(make_problem(2, 1, 64, Mask::causal), q, kv, Source::host), "1000");
}

TEST_F(CudnnDevice, HeadDims) {
  for (const int dim : {8, 16, 40, 72, 80, 96, 192, 256}) {
    const Scene s = bshd_scene(make_problem(4, 2, dim, Mask::causal), 2, 130, 200);
    expect_right(s, "D " + std::to_string(dim));
    expect_right(s, "packed D " + std::to_string(dim), "packed");
  }
  Problem p = make_problem(4, 2, 192, Mask::none);
  p.head_dim_v = 128;
  expect_right(bshd_scene(p, 2, 130, 200), "192/128");
  p.head_dim = 128;
  p.head_dim_v = 64;
  expect_right(bshd_scene(p, 2, 130, 200), "128/64");
}

TEST_F(CudnnDevice, SharedKeysAndOddStrides) {
  for (const char* form : {"dense", "packed"}) {
    Scene s = bshd_scene(make_problem(4, 2, 128, Mask::none), 3, 70, 200);
    s.shape.k.batch = s.shape.v.batch = 0;
    expect_right(s, std::string(form) + " batch stride 0", form);
    s.problem.mask = Mask::causal;
    expect_right(s, std::string(form) + " causal, batch stride 0", form);
    s.shape.k.head = s.shape.v.head = 0;
    expect_right(s, std::string(form) + " head stride 0", form);
    s.shape.v.head = 128;
    expect_right(s, std::string(form) + " head stride 0 of K alone", form);
    // [B, H, S, D] memory.
    s = bshd_scene(make_problem(4, 2, 128, Mask::causal), 3, 70, 200);
    s.shape.q.row = s.shape.out.row = 128;
    s.shape.q.head = s.shape.out.head = 70 * 128;
    s.shape.k.row = s.shape.v.row = 128;
    s.shape.k.head = s.shape.v.head = 200 * 128;
    s.shape.lse_layout = {70 * 4, 1, 70};
    expect_right(s, std::string(form) + " heads first", form);
  }
}

// The last sample lies past 2^31 elements of K and V.
TEST_F(CudnnDevice, PastTwoToThe31Elements) {
  const Problem p = make_problem(32, 32, 128, Mask::causal);
  const std::int64_t lead = (std::int64_t{1} << 31) / (32 * 128) + 16;  // tokens
  Scene small = packed_scene(p, {0, 100}, {0, 130}, Source::host);
  Answer answer = answer_of(small);
  Scene s = small;
  s.shape.batch = 2;
  s.shape.tokens_kv = lead + 130;
  s.shape.max_kv = 130;
  s.offsets_q = {0, 0, 100};
  s.offsets_kv = {0, 0, static_cast<std::int32_t>(lead + 130)};
  s.offsets_kv[1] = static_cast<std::int32_t>(lead);
  s.shape.kv_lengths = Source::host;
  s.kv_lengths = {0, 130};
  s.shape.q_lengths = Source::host;
  s.q_lengths = {0, 100};
  Prepared run = prepared(s);
  const std::size_t bytes = static_cast<std::size_t>(s.shape.tokens_kv) * 32 * 128 * 2;
  const DeviceBytes k(bytes), v(bytes);
  for (const auto& [to, from] : {std::pair{&k, &s.k}, std::pair{&v, &s.v}}) {
    check_cuda(cudaMemset(to->data(), 0, bytes), "cudaMemset");
    check_cuda(cudaMemcpy(to->as<char>() + lead * 32 * 128 * 2, from->data(), from->size() * 2,
                          cudaMemcpyDefault),
               "cudaMemcpy");
  }
  run.call.k = k.data();
  run.call.v = v.data();
  run.run();
  synchronize();
  const Difference d = run.difference(answer);
  EXPECT_TRUE(d.none()) << d.wrong << " wrong, " << d.touched << " touched; " << d.first;
}

TEST_F(CudnnDevice, CapturedCallsReadTheInputsAnew) {
  for (const char* form : {"dense", "packed"}) {
    Scene s = bshd_scene(make_problem(4, 2, 128, Mask::causal), 2, 200, 130);
    Prepared run = prepared(s, form);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
    run.run();
    check_cuda(cudaStreamEndCapture(stream_, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    for (unsigned seed = 10; seed < 12; ++seed) {
      s.v = random_values(s, s.v.size(), seed);
      run.v.put(s.v);
      check_cuda(cudaGraphLaunch(executable, stream_), "launch");
      synchronize();
      EXPECT_TRUE(run.difference(answer_of(s)).none()) << form;
    }
    (void)cudaGraphExecDestroy(executable);
    (void)cudaGraphDestroy(graph);
  }
}

TEST_F(CudnnDevice, PlanFilesSpareTheBuild) {
  std::string folder = std::filesystem::temp_directory_path() / "batten-plans-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  {
    const ScopedVariable on("BATTEN_PLAN_CACHE", std::nullopt);
    const ScopedVariable where("BATTEN_CACHE_DIR", folder);
    for (const char* form : {"dense", "packed", "lengths"}) {
      const Scene s = bshd_scene(make_problem(4, 2, 128, Mask::none), 2, 384, 512);
      const Answer answer = answer_of(s);
      auto start = Clock::now();
      const auto built = plan_for(s, form);
      const double build = milliseconds_since(start);
      start = Clock::now();
      const Prepared restored = prepared(s, form);
      const double restore = milliseconds_since(start);
      std::printf("plan: %-7s built in %.1f ms, restored in %.1f ms, %s\n", form, build, restore,
                  built->info().kernel.c_str());
      EXPECT_EQ(built->info().kernel, restored.plan->info().kernel);
      EXPECT_EQ(built->info().workspace_size, restored.plan->info().workspace_size);
      restored.run();
      synchronize();
      const Difference d = restored.difference(answer);
      EXPECT_TRUE(d.none()) << d.first;
    }
    EXPECT_FALSE(std::filesystem::is_empty(std::filesystem::path(folder) / "cudnn"));
  }
  std::filesystem::remove_all(folder);
}

TEST_F(CudnnDevice, HostTimeOfACall) {
  for (const char* form : {"dense", "packed", "lengths"}) {
    const Scene s = bshd_scene(make_problem(12, 4, 128, Mask::none), 4, 128, 512);
    const Prepared run = prepared(s, form);
    for (int i = 0; i < 20; ++i) run.run();
    synchronize();
    double best = 1e9;
    for (int round = 0; round < 20; ++round) {
      const auto start = Clock::now();
      for (int i = 0; i < 50; ++i) run.run();
      best = std::min(best, milliseconds_since(start) * 1000 / 50);
      synchronize();
    }
    std::printf("host: %-7s %.2f us a call\n", form, best);
  }
}

}  // namespace
}  // namespace batten::impl::cudnn
