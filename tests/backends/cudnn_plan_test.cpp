// What a cudnn plan does around the graph, with a fake graph and fake kernels: order, pointers,
// scratch and refusals.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/cudnn/handle.hpp"
#include "backends/cudnn/kernels.hpp"
#include "backends/cudnn/plan.hpp"
#include "fakes/expect_error.hpp"

namespace batten::impl::cudnn {
namespace {

// What was queued, in order.
struct Queued {
  std::vector<std::string> steps;
  Prepared prepared;
  ArraySources sources;
  Repair repaired;
  GraphPointers pointers;
  void* workspace = nullptr;
  Stream stream = nullptr;
};
Queued g_queued;

class FakeGraph final : public Graph {
 public:
  void execute(void* handle, const GraphPointers& pointers, void* workspace) const override {
    EXPECT_NE(handle, nullptr);
    g_queued.steps.push_back("graph");
    g_queued.pointers = pointers;
    g_queued.workspace = workspace;
    scale = *pointers.scale;
  }
  std::size_t workspace_size() const override { return 1280; }
  ~FakeGraph() override { ++destroyed; }
  const std::string& kernel() const override { return name_; }
  std::vector<std::uint8_t> serialize() const override { return {}; }
  mutable float scale = 0;
  static inline int destroyed = 0;

 private:
  std::string name_ = "fake_kernel";
};

}  // namespace

// The device side, in place of prepare.cu, repair.cu and handle.cpp.
void prepare(const Batch&, const Arrays&, const ArraySources& sources, const Prepared& to, Stream) {
  g_queued.steps.push_back("prepare");
  g_queued.prepared = to;
  g_queued.sources = sources;
}
void repair(const Batch&, const Repair& rows, Stream) {
  g_queued.steps.push_back("repair");
  g_queued.repaired = rows;
}
void* thread_handle(int device) { return reinterpret_cast<void*>(0x100 + device); }
void set_stream(void*, Stream stream) { g_queued.stream = stream; }

namespace {

using Steps = std::vector<std::string>;

Problem problem(Mask mask = Mask::none) {
  Problem p;
  p.dtype = p.out_dtype = DType::f16;
  p.num_heads = p.num_kv_heads = 2;
  p.head_dim = p.head_dim_v = 8;
  p.mask = mask;
  return p;
}

Shape bshd(std::int64_t batch, std::int64_t q, std::int64_t kv) {
  Shape s;
  s.batch = batch;
  s.max_q = q;
  s.max_kv = kv;
  s.tokens_q = batch * q;
  s.tokens_kv = batch * kv;
  s.q = s.out = {q * 16, 16, 8};
  s.k = s.v = {kv * 16, 16, 8};
  s.lse = true;
  s.lse_layout = {q * 2, 2, 1};
  return s;
}

Shape packed(std::int64_t batch, std::int64_t q, std::int64_t kv, Source source) {
  Shape s = bshd(batch, q, kv);
  s.packed = true;
  s.offsets_q = s.offsets_kv = source;
  for (Layout* l : {&s.q, &s.k, &s.v, &s.out, &s.lse_layout}) l->batch = 0;
  return s;
}

class CudnnPlan : public ::testing::Test {
 protected:
  void SetUp() override { g_queued = {}; }

  std::shared_ptr<const Plan> make(const Problem& p, const Shape& shape, const char* form = "") {
    const Shape key = plan_key(p, shape, form);
    auto graph = std::make_unique<FakeGraph>();
    graph_ = graph.get();
    return make_graph_plan(p, key, form_of(p, key, form), 3, std::move(graph), "cuDNN 9.19.0");
  }

  Call call() {
    Call c;
    c.q = q;
    c.k = k;
    c.v = v;
    c.out = out;
    c.lse = lse;
    c.scale = 0.125;
    c.stream = reinterpret_cast<Stream>(0x77);
    return c;
  }

  const FakeGraph* graph_ = nullptr;
  std::uint16_t q[4096] = {}, k[4096] = {}, v[4096] = {}, out[4096] = {};
  float lse[1024] = {};
  alignas(256) char scratch[1 << 16] = {};
};

TEST_F(CudnnPlan, DenseIsOneGraph) {
  const Shape s = bshd(2, 4, 6);
  const auto plan = make(problem(), s);
  EXPECT_EQ(plan->info().form, "dense");
  EXPECT_EQ(plan->info().kernel, "fake_kernel");
  EXPECT_EQ(plan->info().library, "cuDNN 9.19.0");
  EXPECT_EQ(plan->info().workspace_size, 1280u);
  plan->run(s, call(), scratch);
  EXPECT_EQ(g_queued.steps, Steps{"graph"});
  EXPECT_EQ(g_queued.pointers.q, q);
  EXPECT_EQ(g_queued.pointers.out, out);
  EXPECT_EQ(g_queued.pointers.lse, lse);
  EXPECT_EQ(g_queued.workspace, scratch);
  EXPECT_EQ(g_queued.stream, reinterpret_cast<Stream>(0x77));
  EXPECT_EQ(graph_->scale, 0.125f);
}

TEST_F(CudnnPlan, MoreQueriesThanKeysBegin) {
  const Shape s = bshd(2, 10, 6);
  make(problem(Mask::causal), s)->run(s, call(), scratch);
  EXPECT_EQ(g_queued.steps, (Steps{"repair", "graph"}));
  EXPECT_EQ(g_queued.repaired.begin, 0);
  EXPECT_EQ(g_queued.repaired.end, 4);
  EXPECT_EQ(g_queued.repaired.first, nullptr);
  EXPECT_EQ(g_queued.repaired.out, out);
  EXPECT_EQ(g_queued.pointers.q, q + 4 * 16);
  EXPECT_EQ(g_queued.pointers.out, out + 4 * 16);
  EXPECT_EQ(g_queued.pointers.lse, lse + 4 * 2);
  EXPECT_EQ(g_queued.pointers.k, k);
}

TEST_F(CudnnPlan, SharedKeysRunOnceOrOnceForEachSample) {
  Shape s = bshd(3, 4, 6);
  s.k.batch = s.v.batch = 0;
  make(problem(), s)->run(s, call(), scratch);
  EXPECT_EQ(g_queued.steps, Steps{"graph"});
  EXPECT_EQ(g_queued.pointers.q, q);

  g_queued = {};
  make(problem(Mask::causal), s)->run(s, call(), scratch);
  EXPECT_EQ(g_queued.steps, (Steps{"graph", "graph", "graph"}));
  EXPECT_EQ(g_queued.pointers.q, q + 2 * 4 * 16);
  EXPECT_EQ(g_queued.pointers.k, k);
  EXPECT_EQ(g_queued.pointers.out, out + 2 * 4 * 16);
  EXPECT_EQ(g_queued.pointers.lse, lse + 2 * 4 * 2);
}

TEST_F(CudnnPlan, PackedIsPreparedIntoTheWorkspace) {
  const Shape s = packed(3, 10, 20, Source::host);
  const auto plan = make(problem(), s);
  const WorkspaceLayout layout = workspace_layout(3, true, true, 1280);
  EXPECT_EQ(plan->info().form, "packed");
  EXPECT_EQ(plan->info().workspace_size, static_cast<std::size_t>(layout.size));
  const std::int32_t offsets[] = {0, 3, 7, 10};
  Call c = call();
  c.offsets_q = c.offsets_kv = offsets;
  plan->run(s, c, scratch);
  EXPECT_EQ(g_queued.steps, (Steps{"prepare", "graph"}));
  EXPECT_TRUE(g_queued.sources.offsets_q && g_queued.sources.offsets_kv);
  EXPECT_EQ(g_queued.sources.host_count(), 2);
  EXPECT_EQ(g_queued.prepared.out, out);
  EXPECT_EQ(g_queued.prepared.lse, lse);
  EXPECT_EQ(g_queued.pointers.lengths_q, g_queued.prepared.lengths_q);
  EXPECT_EQ(g_queued.pointers.offsets_lse, g_queued.prepared.offsets_lse);
  EXPECT_EQ(reinterpret_cast<const char*>(g_queued.pointers.offsets_v),
            scratch + layout.offsets + 2 * layout.offsets_stride);
  EXPECT_EQ(g_queued.workspace, scratch + layout.library);
  EXPECT_EQ(g_queued.pointers.q, q);
}

TEST_F(CudnnPlan, UniformForcedPackedHasNoArrays) {
  const Shape s = bshd(2, 4, 6);
  const auto plan = make(problem(), s, "packed");
  plan->run(s, call(), scratch);
  EXPECT_EQ(plan->info().form, "packed");
  EXPECT_EQ(g_queued.steps, (Steps{"prepare", "graph"}));
  EXPECT_EQ(g_queued.sources.host_count(), 0);
}

TEST_F(CudnnPlan, LengthsAreRepairedWhereRowsSeeNothing) {
  Shape s = bshd(2, 4, 6);
  s.q_lengths = s.kv_lengths = Source::host;
  const auto plan = make(problem(), s);
  EXPECT_EQ(plan->info().form, "lengths");
  std::int32_t q_lengths[] = {4, 4}, kv_lengths[] = {6, 2};
  Call c = call();
  c.q_lengths = q_lengths;
  c.kv_lengths = kv_lengths;
  plan->run(s, c, scratch);
  EXPECT_EQ(g_queued.steps, (Steps{"prepare", "graph"}));  // every row sees a key
  EXPECT_EQ(g_queued.prepared.out, nullptr);
  EXPECT_EQ(g_queued.prepared.offsets_q, nullptr);

  g_queued = {};
  kv_lengths[1] = 0;
  plan->run(s, c, scratch);
  EXPECT_EQ(g_queued.steps, (Steps{"prepare", "graph", "repair"}));
  EXPECT_EQ(g_queued.repaired.first, g_queued.prepared.lengths_q);
  EXPECT_EQ(g_queued.repaired.end, 4);

  g_queued = {};
  kv_lengths[1] = 6;
  q_lengths[0] = 3;
  plan->run(s, c, scratch);
  EXPECT_EQ(g_queued.steps.back(), "repair");

  // Lengths on the device are not read: repair always.
  g_queued = {};
  s.q_lengths = s.kv_lengths = Source::device;
  c.q_lengths = c.kv_lengths = reinterpret_cast<const std::int32_t*>(0x10);
  plan->run(s, c, scratch);
  EXPECT_EQ(g_queued.steps, (Steps{"prepare", "graph", "repair"}));
}

TEST_F(CudnnPlan, CapturedGraphsOutliveTheirPlan) {
  const Shape s = bshd(2, 4, 6);
  FakeGraph::destroyed = 0;
  make(problem(), s)->run(s, call(), scratch);
  EXPECT_EQ(FakeGraph::destroyed, 1);
  auto plan = make(problem(), s);
  Call captured = call();
  captured.capturing = true;
  plan->run(s, captured, scratch);
  plan->run(s, captured, scratch);
  plan.reset();
  EXPECT_EQ(FakeGraph::destroyed, 1);
}

TEST_F(CudnnPlan, TrivialCallsAskNoGraph) {
  const auto plan = make_trivial_plan(problem(), "cuDNN");
  EXPECT_EQ(plan->info().workspace_size, 0u);
  Shape s = bshd(2, 4, 0);
  plan->run(s, call(), nullptr);
  EXPECT_EQ(g_queued.steps, Steps{"repair"});
  EXPECT_EQ(g_queued.repaired.end, 4);

  g_queued = {};
  const std::int32_t offsets[] = {0, 3, 4};
  s = packed(2, 4, 0, Source::host);
  Call c = call();
  c.offsets_q = c.offsets_kv = offsets;
  plan->run(s, c, nullptr);
  EXPECT_EQ(g_queued.steps, Steps{"prepare"});
  EXPECT_EQ(g_queued.prepared.lengths_q, nullptr);
  EXPECT_EQ(g_queued.prepared.out, out);

  g_queued = {};
  plan->run(bshd(0, 4, 4), call(), nullptr);
  plan->run(bshd(2, 0, 4), call(), nullptr);
  EXPECT_TRUE(g_queued.steps.empty());
}

}  // namespace
}  // namespace batten::impl::cudnn
