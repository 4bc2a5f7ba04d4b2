// The scratch pool on the host, and with the embedder's allocator.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <vector>

#include "dispatch/dispatch_test.hpp"
#include "dispatch/workspace.hpp"
#include "fakes/environment.hpp"
#include "fakes/expect_error.hpp"
#include "fakes/fake_device.hpp"

namespace batten::testing {
namespace {

using impl::WorkspaceLease;
using impl::WorkspacePool;

constexpr Device kCpu = Device::cpu();

// An embedder's allocator that remembers every word.
class Embedder {
 public:
  struct Request {
    batten_device device;
    void* data;
    std::size_t bytes;
    void* stream;
  };

  static void* alloc(void* user, batten_device device, std::size_t bytes, void* stream) {
    auto& self = *static_cast<Embedder*>(user);
    if (self.refuses) return nullptr;
    void* data = std::aligned_alloc(256, bytes);
    self.allocated.push_back({device, data, bytes, stream});
    self.living[data] = bytes;
    return data;
  }
  static void free(void* user, batten_device device, void* data, std::size_t bytes, void* stream) {
    auto& self = *static_cast<Embedder*>(user);
    self.freed.push_back({device, data, bytes, stream});
    const auto found = self.living.find(data);
    if (found == self.living.end()) {
      ADD_FAILURE() << "got memory back that it did not give";
      return;
    }
    EXPECT_EQ(found->second, bytes);
    self.living.erase(found);
    std::free(data);
  }
  void install(WorkspacePool& pool) { pool.set_allocator(alloc, free, this); }

  bool refuses = false;
  std::vector<Request> allocated, freed;
  std::map<void*, std::size_t> living;
};

class HostWorkspaceTest : public ::testing::Test {
 protected:
  CleanEnvironment environment_;
  FakeDevices devices_{2};
  Embedder embedder_;  // outlives the pool
  Embedder second_;
  WorkspacePool pool_;
};

TEST_F(HostWorkspaceTest, BlocksAreAlignedAndReused) {
  void* first = pool_.acquire(kCpu, nullptr, 1000).data();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0u);
  EXPECT_EQ(pool_.acquire(kCpu, nullptr, 1000).data(), first);
  EXPECT_EQ(pool_.acquire(kCpu, nullptr, 64 * kKiB).data(), first);
  EXPECT_EQ(devices_->counts().allocations, 0);
}

TEST_F(HostWorkspaceTest, CallsInFlightHaveDistinctBlocks) {
  std::vector<WorkspaceLease> leases;
  std::set<void*> blocks;
  for (int i = 0; i < 5; ++i) {
    leases.push_back(pool_.acquire(kCpu, nullptr, kKiB));
    blocks.insert(leases.back().data());
  }
  EXPECT_EQ(blocks.size(), 5u);
  leases.clear();
  for (int i = 0; i < 5; ++i) {
    leases.push_back(pool_.acquire(kCpu, nullptr, kKiB));
    EXPECT_TRUE(blocks.contains(leases.back().data())) << "the idle ones are used first";
  }
}

TEST_F(HostWorkspaceTest, ALeaseThatIsAssignedOverEnds) {
  WorkspaceLease lease = pool_.acquire(kCpu, nullptr, kKiB);
  lease = pool_.acquire(kCpu, nullptr, kKiB);
  EXPECT_EQ(pool_.statistics().size(), 1u) << "the first block is idle";
  embedder_.install(pool_);
  impl::Stream stream = devices_->create_stream();
  devices_->begin_capture(stream);
  lease = pool_.acquire(kGpu, stream, kKiB, true);
  EXPECT_TRUE(embedder_.freed.empty());
  lease = {};
  EXPECT_EQ(embedder_.freed.size(), 1u);
}

TEST_F(HostWorkspaceTest, TheStreamOfACpuCallMeansNothing) {
  int stream = 0;
  void* block = pool_.acquire(kCpu, &stream, kKiB).data();
  EXPECT_EQ(pool_.acquire(kCpu, nullptr, kKiB).data(), block);
}

TEST_F(HostWorkspaceTest, ALargerBlockReplacesAnIdleSmallerOne) {
  embedder_.install(pool_);
  (void)pool_.acquire(kCpu, nullptr, kKiB);
  (void)pool_.acquire(kCpu, nullptr, 100 * kKiB);
  EXPECT_EQ(embedder_.living.size(), 1u);
  ASSERT_EQ(embedder_.freed.size(), 1u);
  EXPECT_EQ(embedder_.freed[0].data, embedder_.allocated[0].data);
  (void)pool_.acquire(kCpu, nullptr, kKiB);
  EXPECT_EQ(embedder_.allocated.size(), 2u) << "the large one serves small needs";
}

TEST_F(HostWorkspaceTest, AnIdleBlockThatFitsIsTakenBesideOneThatDoesNot) {
  embedder_.install(pool_);
  {
    const WorkspaceLease small = pool_.acquire(kCpu, nullptr, kKiB);
    const WorkspaceLease large = pool_.acquire(kCpu, nullptr, 100 * kKiB);
  }
  const WorkspaceLease large = pool_.acquire(kCpu, nullptr, 100 * kKiB);
  const WorkspaceLease small = pool_.acquire(kCpu, nullptr, kKiB);
  EXPECT_EQ(embedder_.allocated.size(), 2u);
  EXPECT_TRUE(embedder_.freed.empty());
}

TEST_F(HostWorkspaceTest, StatisticsCountWhatIsIdle) {
  EXPECT_TRUE(pool_.statistics().empty());
  {
    const WorkspaceLease a = pool_.acquire(kCpu, nullptr, kKiB);
    const WorkspaceLease b = pool_.acquire(kCpu, nullptr, kKiB);
    EXPECT_TRUE(pool_.statistics().empty());
  }
  ASSERT_EQ(pool_.statistics().size(), 1u);
  EXPECT_EQ(pool_.statistics()[0].device, kCpu);
  EXPECT_EQ(pool_.statistics()[0].bytes, 128 * kKiB);
  pool_.trim();
  EXPECT_TRUE(pool_.statistics().empty());
}

TEST_F(HostWorkspaceTest, TheEndOfHostMemoryIsAnError) {
  embedder_.install(pool_);
  (void)pool_.acquire(kCpu, nullptr, kKiB);
  embedder_.refuses = true;
  expect_error(ErrorCode::OutOfMemory, {"131072 bytes of host memory"},
               [&] { (void)pool_.acquire(kCpu, nullptr, 100 * kKiB); });
  embedder_.refuses = false;
  EXPECT_NE(pool_.acquire(kCpu, nullptr, 100 * kKiB).data(), nullptr);
}

// ---- the embedder's allocator
// -------------------------------------------------------------------------

TEST_F(HostWorkspaceTest, TheEmbeddersAllocatorGetsDeviceSizeAndStream) {
  embedder_.install(pool_);
  impl::Stream stream = devices_->create_stream(1);
  {
    const impl::DeviceGuard guard(Device::cuda(1));
    void* block = pool_.acquire(Device::cuda(1), stream, 10 * kKiB).data();
    EXPECT_EQ(embedder_.allocated.at(0).data, block);
    (void)pool_.acquire(Device::cuda(1), stream, 100 * kKiB);  // grows: the first comes back
  }
  ASSERT_EQ(embedder_.allocated.size(), 2u);
  EXPECT_EQ(embedder_.allocated[0].device.type, BATTEN_CUDA);
  EXPECT_EQ(embedder_.allocated[0].device.index, 1);
  EXPECT_GE(embedder_.allocated[0].bytes, 10 * kKiB);
  EXPECT_EQ(embedder_.allocated[0].stream, stream);
  ASSERT_EQ(embedder_.freed.size(), 1u);
  EXPECT_EQ(embedder_.freed[0].data, embedder_.allocated[0].data);
  EXPECT_EQ(embedder_.freed[0].stream, stream);
  EXPECT_EQ(embedder_.freed[0].device.index, 1);
  (void)pool_.acquire(kCpu, nullptr, kKiB);
  EXPECT_EQ(embedder_.allocated[2].device.type, BATTEN_CPU);
  EXPECT_EQ(devices_->counts().allocations, 0);
}

TEST_F(HostWorkspaceTest, TrimGivesTheEmbedderItsMemoryOnTheDefaultStream) {
  embedder_.install(pool_);
  (void)pool_.acquire(kGpu, devices_->create_stream(), kKiB);
  (void)pool_.acquire(kCpu, nullptr, kKiB);
  pool_.trim();
  EXPECT_TRUE(embedder_.living.empty());
  ASSERT_EQ(embedder_.freed.size(), 2u);
  EXPECT_EQ(embedder_.freed[0].stream, nullptr);
  EXPECT_EQ(embedder_.freed[1].stream, nullptr) << "the stream may be gone by now";
}

TEST_F(HostWorkspaceTest, AGraphsScratchComesFromTheEmbedderToo) {
  embedder_.install(pool_);
  impl::Stream stream = devices_->create_stream();
  devices_->begin_capture(stream);
  (void)pool_.acquire(kGpu, stream, kKiB, true);
  ASSERT_EQ(embedder_.allocated.size(), 1u);
  ASSERT_EQ(embedder_.freed.size(), 1u);
  EXPECT_EQ(embedder_.freed[0].stream, stream);
  EXPECT_EQ(devices_->counts().graph_allocations, 0);
  embedder_.refuses = true;
  EXPECT_THROW((void)pool_.acquire(kGpu, stream, kKiB, true), Error);
}

TEST_F(HostWorkspaceTest, AnEmbedderWithoutMemoryIsTheEndOfMemory) {
  embedder_.install(pool_);
  embedder_.refuses = true;
  expect_error(ErrorCode::OutOfMemory, {"65536 bytes", "cuda:0"},
               [&] { (void)pool_.acquire(kGpu, nullptr, kKiB); });
}

TEST_F(HostWorkspaceTest, AnotherAllocatorFirstGetsTheFirstOnesMemoryBack) {
  embedder_.install(pool_);
  (void)pool_.acquire(kCpu, nullptr, kKiB);
  (void)pool_.acquire(kGpu, nullptr, kKiB);
  second_.install(pool_);
  EXPECT_TRUE(embedder_.living.empty());
  (void)pool_.acquire(kCpu, nullptr, kKiB);
  (void)pool_.acquire(kGpu, nullptr, kKiB);
  EXPECT_EQ(second_.living.size(), 2u);
  EXPECT_EQ(embedder_.allocated.size(), 2u);
  pool_.set_allocator(nullptr, nullptr, nullptr);
  EXPECT_TRUE(second_.living.empty());
  (void)pool_.acquire(kGpu, nullptr, kKiB);
  EXPECT_EQ(devices_->counts().allocations, 1) << "the default again";
}

TEST_F(HostWorkspaceTest, MemoryLentAcrossTheChangeGoesBackWhereItCameFrom) {
  embedder_.install(pool_);
  {
    impl::Stream stream = devices_->create_stream();
    const WorkspaceLease host = pool_.acquire(kCpu, nullptr, kKiB);
    const WorkspaceLease device = pool_.acquire(kGpu, stream, kKiB);
    second_.install(pool_);
    EXPECT_EQ(embedder_.living.size(), 2u);
  }
  pool_.trim();
  EXPECT_TRUE(embedder_.living.empty());
  EXPECT_TRUE(second_.allocated.empty());
}

TEST_F(HostWorkspaceTest, ABlockThatGrowsAcrossTheChangeGoesBackWhereItCameFrom) {
  embedder_.install(pool_);
  impl::Stream stream = devices_->create_stream();
  {
    const WorkspaceLease busy = pool_.acquire(kGpu, stream, kKiB);
    second_.install(pool_);
  }
  (void)pool_.acquire(kGpu, stream, 100 * kKiB);
  EXPECT_TRUE(embedder_.living.empty());
  EXPECT_EQ(second_.living.size(), 1u);
}

}  // namespace
}  // namespace batten::testing
