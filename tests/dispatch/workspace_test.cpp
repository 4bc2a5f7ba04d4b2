// The scratch pool on devices: whose block, how large, when freed.
#include "dispatch/workspace.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "dispatch/dispatch_test.hpp"
#include "fakes/environment.hpp"
#include "fakes/expect_error.hpp"
#include "fakes/fake_device.hpp"

namespace batten::testing {
namespace {

using impl::WorkspaceLease;
using impl::WorkspacePool;

constexpr bool kCapturing = true;

class WorkspaceTest : public ::testing::Test {
 protected:
  // Lends and takes back; the address tells whose block it was.
  void* touch(Device device, impl::Stream stream, std::size_t bytes) {
    const impl::DeviceGuard guard(device);
    const WorkspaceLease lease = pool_.acquire(device, stream, bytes);
    EXPECT_TRUE(devices_->owns(lease.data(), bytes, device.index));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lease.data()) % 256, 0u);
    return lease.data();
  }

  CleanEnvironment environment_;
  FakeDevices devices_{2};
  WorkspacePool pool_;
};

TEST_F(WorkspaceTest, NothingNeedsNothing) {
  const WorkspaceLease lease = pool_.acquire(kGpu, nullptr, 0);
  EXPECT_EQ(lease.data(), nullptr);
  EXPECT_EQ(devices_->counts().allocations, 0);
  EXPECT_TRUE(pool_.statistics().empty());
}

TEST_F(WorkspaceTest, AStreamKeepsItsBlock) {
  impl::Stream stream = devices_->create_stream();
  void* first = touch(kGpu, stream, 10 * kKiB);
  EXPECT_EQ(touch(kGpu, stream, 10 * kKiB), first);
  EXPECT_EQ(touch(kGpu, stream, 1), first);
  EXPECT_EQ(devices_->counts().allocations, 1);
  EXPECT_EQ(devices_->counts().frees, 0);
  EXPECT_EQ(devices_->counts().synchronisations, 0);
}

TEST_F(WorkspaceTest, GrowsInStepsAndGivesTheOldBlockBackOnTheStream) {
  impl::Stream stream = devices_->create_stream();
  (void)touch(kGpu, stream, 1);
  for (std::size_t bytes = 1; bytes <= 64 * kKiB; bytes += kKiB) (void)touch(kGpu, stream, bytes);
  EXPECT_EQ(devices_->counts().allocations, 1);
  (void)touch(kGpu, stream, 64 * kKiB + 1);
  EXPECT_EQ(devices_->counts().allocations, 2);
  EXPECT_EQ(devices_->counts().frees, 1);
  EXPECT_EQ(devices_->counts().synchronous_frees, 0);
  EXPECT_EQ(devices_->bytes_in_use(), 128 * kKiB);
  (void)touch(kGpu, stream, 5 * kMiB);
  (void)touch(kGpu, stream, 3);
  EXPECT_EQ(devices_->bytes_in_use(), 5 * kMiB) << "and never shrinks by itself";
}

TEST_F(WorkspaceTest, StreamsDoNotShare) {
  impl::Stream a = devices_->create_stream();
  impl::Stream b = devices_->create_stream();
  const std::set<void*> blocks{touch(kGpu, a, 1), touch(kGpu, b, 1), touch(kGpu, nullptr, 1)};
  EXPECT_EQ(blocks.size(), 3u);
  EXPECT_EQ(pool_.statistics().size(), 3u);
}

TEST_F(WorkspaceTest, DevicesDoNotShareTheirDefaultStreams) {
  void* zero = touch(Device::cuda(0), nullptr, kKiB);
  void* one = touch(Device::cuda(1), nullptr, kKiB);
  EXPECT_NE(zero, one);
  EXPECT_EQ(touch(Device::cuda(0), nullptr, kKiB), zero);
  EXPECT_EQ(touch(Device::cuda(1), nullptr, kKiB), one);
}

TEST_F(WorkspaceTest, ANewStreamAtADeadOnesHandleGetsABlockOfItsOwn) {
  impl::Stream stream = devices_->create_stream();
  void* old = touch(kGpu, stream, kKiB);
  devices_->destroy_stream(stream);
  devices_->create_stream_at(stream);
  EXPECT_NE(touch(kGpu, stream, kKiB), old) << "work of the dead stream may still use it";
  EXPECT_EQ(devices_->blocks_in_use(), 2);
  pool_.trim();
  EXPECT_EQ(devices_->blocks_in_use(), 0);
}

TEST_F(WorkspaceTest, TwoLeasesOfOneStreamTakeTurns) {
  impl::Stream stream = devices_->create_stream();
  void* first = nullptr;
  {
    const WorkspaceLease lease = pool_.acquire(kGpu, stream, kKiB);
    first = lease.data();
  }
  EXPECT_EQ(pool_.acquire(kGpu, stream, kKiB).data(), first);
}

TEST_F(WorkspaceTest, ALeaseMovesAndEndsOnce) {
  impl::Stream a = devices_->create_stream();
  impl::Stream b = devices_->create_stream();
  WorkspaceLease lease = pool_.acquire(kGpu, a, kKiB);
  void* block = lease.data();
  WorkspaceLease moved = std::move(lease);
  EXPECT_EQ(moved.data(), block);
  EXPECT_EQ(lease.data(), nullptr);      // NOLINT: what a moved-from lease holds
  moved = pool_.acquire(kGpu, b, kKiB);  // gives a's back
  pool_.trim();
  EXPECT_FALSE(devices_->owns(block, kKiB, 0)) << "a's was idle";
  EXPECT_TRUE(devices_->owns(moved.data(), kKiB, 0)) << "b's is not";
  WorkspaceLease& same = moved;
  moved = std::move(same);
  EXPECT_TRUE(devices_->owns(moved.data(), kKiB, 0));
}

TEST_F(WorkspaceTest, StatisticsSayWhatEachStreamHolds) {
  impl::Stream stream = devices_->create_stream(1);
  (void)touch(Device::cuda(0), nullptr, 1);
  (void)touch(Device::cuda(1), stream, 100 * kKiB);
  const auto all = pool_.statistics();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].device, Device::cuda(0));
  EXPECT_EQ(all[0].stream_id, 1u);
  EXPECT_EQ(all[0].bytes, 64 * kKiB);
  EXPECT_EQ(all[1].device, Device::cuda(1));
  EXPECT_EQ(all[1].stream_id, devices_->stream_id(stream));
  EXPECT_EQ(all[1].bytes, 128 * kKiB);
}

TEST_F(WorkspaceTest, GoesWithItsBlocks) {
  {
    WorkspacePool pool;
    const impl::DeviceGuard guard(Device::cuda(1));
    (void)pool.acquire(Device::cuda(1), devices_->create_stream(1), kKiB);
    EXPECT_EQ(devices_->blocks_in_use(), 1);
  }
  EXPECT_EQ(devices_->blocks_in_use(), 0);
}

// ---- the cap and the end of memory
// --------------------------------------------------------------------

TEST_F(WorkspaceTest, TheCapIs128MiBAndTheMessageNamesBothNumbers) {
  EXPECT_EQ(pool_.cap_bytes(), 128 * kMiB);
  EXPECT_NO_THROW((void)touch(kGpu, nullptr, 128 * kMiB));
  pool_.trim();
  for (const Device device : {kGpu, Device::cpu()}) {
    expect_error(ErrorCode::OutOfMemory,
                 {"workspace", "134217729 bytes", "cap is 128 MiB", "BATTEN_WORKSPACE_MIB"},
                 [&] { (void)pool_.acquire(device, nullptr, 128 * kMiB + 1); });
  }
  expect_error(ErrorCode::OutOfMemory, {"18446744073709551615 bytes", "128 MiB"},
               [&] { (void)pool_.acquire(kGpu, nullptr, SIZE_MAX); });
  EXPECT_EQ(devices_->blocks_in_use(), 0);
}

TEST_F(WorkspaceTest, TheCapIsAVariable) {
  const ScopedVariable cap("BATTEN_WORKSPACE_MIB", "2");
  WorkspacePool small;
  EXPECT_EQ(small.cap_bytes(), 2 * kMiB);
  EXPECT_NO_THROW((void)small.acquire(kGpu, nullptr, 2 * kMiB));
  expect_error(ErrorCode::OutOfMemory, {"2097153 bytes", "cap is 2 MiB"},
               [&] { (void)small.acquire(kGpu, nullptr, 2 * kMiB + 1); });
}

TEST_F(WorkspaceTest, ABadCapIsRefusedWithTheRange) {
  for (const char* bad : {"0", "-1", "many", "1.5", "64MiB", " 64", "64 ", "0x40", "1048577",
                          "99999999999999999999"}) {
    const ScopedVariable cap("BATTEN_WORKSPACE_MIB", bad);
    expect_error(ErrorCode::InvalidArgument,
                 {"BATTEN_WORKSPACE_MIB=" + std::string(bad), "from 1 to 1048576"},
                 [] { const WorkspacePool pool; });
  }
  for (const char* good : {"1", "1048576", ""}) {
    const ScopedVariable cap("BATTEN_WORKSPACE_MIB", good);
    EXPECT_NO_THROW(const WorkspacePool pool) << good;
  }
}

TEST_F(WorkspaceTest, TheEndOfMemoryNamesTheNeedAndTheDevice) {
  devices_->limit_memory(kMiB);
  const impl::DeviceGuard guard(Device::cuda(1));
  expect_error(ErrorCode::OutOfMemory, {"2097152 bytes", "cuda:1", "no memory left"},
               [&] { (void)pool_.acquire(Device::cuda(1), nullptr, 2 * kMiB); });
}

TEST_F(WorkspaceTest, AFailureLeavesThePoolAsItWas) {
  impl::Stream stream = devices_->create_stream();
  void* block = touch(kGpu, stream, 64 * kKiB);
  devices_->limit_memory(100 * kKiB);
  EXPECT_THROW((void)pool_.acquire(kGpu, stream, kMiB), Error);
  EXPECT_EQ(touch(kGpu, stream, 64 * kKiB), block) << "the old block is still there";
  devices_->limit_memory(10 * kMiB);
  EXPECT_NO_THROW((void)touch(kGpu, stream, kMiB));
  devices_->fail_next(DeviceCall::stream_id);
  expect_error(ErrorCode::Device, {"the fake device reported a failure"},
               [&] { (void)pool_.acquire(kGpu, stream, kKiB); });
  EXPECT_NO_THROW((void)touch(kGpu, stream, kKiB)) << "no lock was left behind";
}

// ---- trim
// ---------------------------------------------------------------------------------------------

TEST_F(WorkspaceTest, TrimGivesIdleBlocksBackAndLeavesThoseInUse) {
  impl::Stream busy = devices_->create_stream();
  (void)touch(kGpu, devices_->create_stream(), kKiB);
  (void)touch(Device::cuda(1), nullptr, kKiB);
  {
    const WorkspaceLease lease = pool_.acquire(kGpu, busy, kKiB);
    pool_.trim();
    EXPECT_EQ(devices_->blocks_in_use(), 1);
    EXPECT_TRUE(devices_->owns(lease.data(), kKiB, 0));
  }
  EXPECT_EQ(pool_.acquire(kGpu, busy, kKiB).data() != nullptr, true);
  EXPECT_EQ(devices_->counts().allocations, 3) << "the busy one kept its block";
  pool_.trim();
  EXPECT_EQ(devices_->blocks_in_use(), 0);
  EXPECT_TRUE(pool_.statistics().empty());
  EXPECT_NO_THROW((void)touch(kGpu, busy, kKiB)) << "a new one where it is wanted again";
}

TEST_F(WorkspaceTest, TrimOutlivesItsStreamsAndRestoresTheDevice) {
  impl::Stream stream = devices_->create_stream(1);
  (void)touch(Device::cuda(1), stream, kKiB);
  devices_->destroy_stream(stream);
  devices_->set_current_device(0);
  pool_.trim();  // FakeDevices fails the test if a dead stream or another device were named
  EXPECT_EQ(devices_->current_device(), 0);
  EXPECT_EQ(devices_->counts().synchronous_frees, 1) << "waits for the device's work";
  EXPECT_EQ(devices_->counts().frees, 0);
}

TEST_F(WorkspaceTest, TrimOfNothingIsFine) {
  pool_.trim();
  pool_.trim();
}

// ---- streams without end
// ------------------------------------------------------------------------------

TEST_F(WorkspaceTest, ManyStreamsKeepTheirScratch) {
  std::vector<impl::Stream> streams;
  for (int i = 0; i < 64; ++i) {
    streams.push_back(devices_->create_stream());
    (void)touch(kGpu, streams.back(), kKiB);
  }
  const DeviceCounts before = devices_->counts();
  for (int round = 0; round < 2; ++round) {
    for (impl::Stream stream : streams) (void)touch(kGpu, stream, kKiB);
  }
  EXPECT_EQ(devices_->counts().allocations, before.allocations);
  EXPECT_EQ(devices_->counts().synchronous_frees, 0);
}

TEST_F(WorkspaceTest, StreamsWithoutEndDoNotHoldMemoryWithoutEnd) {
  impl::Stream busy = devices_->create_stream();
  const WorkspaceLease lease = pool_.acquire(kGpu, busy, kKiB);
  for (int i = 0; i < 500; ++i) {
    impl::Stream stream = devices_->create_stream();
    (void)touch(kGpu, stream, kKiB);
    devices_->destroy_stream(stream);
    ASSERT_LE(devices_->blocks_in_use(), 65);
  }
  EXPECT_TRUE(devices_->owns(lease.data(), kKiB, 0)) << "a block in use stays";
}

// ---- graphs
// -------------------------------------------------------------------------------------------

TEST_F(WorkspaceTest, AGraphGetsMemoryOfItsOwn) {
  impl::Stream stream = devices_->create_stream(), other = devices_->create_stream();
  void* pooled = touch(kGpu, stream, 64 * kKiB);
  devices_->begin_capture(stream);
  void* first = nullptr;
  {
    const WorkspaceLease lease = pool_.acquire(kGpu, stream, kKiB, kCapturing);
    first = lease.data();
    EXPECT_NE(first, pooled) << "the pool's block is not lent to a graph";
  }
  EXPECT_EQ(pool_.acquire(kGpu, stream, kKiB, kCapturing).data(), first)
      << "the stream's calls come one after another";
  devices_->begin_capture(other);
  EXPECT_NE(pool_.acquire(kGpu, other, kKiB, kCapturing).data(), first)
      << "those of other streams may run at the same time";
  EXPECT_EQ(devices_->counts().graph_allocations, 0) << "replays do not allocate";
  EXPECT_EQ(devices_->counts().frees, 0);
  ASSERT_EQ(pool_.statistics().size(), 1u);
  EXPECT_EQ(pool_.statistics()[0].bytes, 64 * kKiB) << "and never the pool's";
  devices_->end_capture(stream);
  devices_->end_capture(other);
  EXPECT_EQ(touch(kGpu, stream, 64 * kKiB), pooled);
  EXPECT_EQ(devices_->counts().synchronisations, 0);
  devices_->destroy_graphs();
}

TEST_F(WorkspaceTest, AGraphKeepsItsMemoryUntilItEnds) {
  impl::Stream stream = devices_->create_stream();
  devices_->begin_capture(stream);
  void* const data = pool_.acquire(kGpu, stream, kKiB, kCapturing).data();
  devices_->end_capture(stream);
  pool_.trim();
  EXPECT_TRUE(devices_->owns(data, kKiB, 0)) << "the graph may be replayed";
  devices_->begin_capture(stream);
  EXPECT_NE(pool_.acquire(kGpu, stream, kKiB, kCapturing).data(), data)
      << "another graph may run at the same time";
  devices_->end_capture(stream);
  devices_->destroy_graphs();
  EXPECT_EQ(devices_->blocks_in_use(), 2) << "its end may not call the runtime";
  devices_->begin_capture(stream);
  (void)pool_.acquire(kGpu, stream, kKiB, kCapturing);
  EXPECT_EQ(devices_->blocks_in_use(), 2) << "used again";
  devices_->end_capture(stream);
  pool_.trim();
  EXPECT_EQ(devices_->blocks_in_use(), 1);
  devices_->destroy_graphs();
  pool_.trim();
  EXPECT_EQ(devices_->blocks_in_use(), 0);
}

TEST_F(WorkspaceTest, AGraphThatNeedsMoreKeepsWhatItHad) {
  impl::Stream stream = devices_->create_stream();
  devices_->begin_capture(stream);
  void* small = pool_.acquire(kGpu, stream, kKiB, kCapturing).data();
  void* large = pool_.acquire(kGpu, stream, kMiB, kCapturing).data();
  EXPECT_NE(large, small);
  EXPECT_TRUE(devices_->owns(large, kMiB, 0));
  EXPECT_TRUE(devices_->owns(small, kKiB, 0)) << "nodes use it";
  EXPECT_EQ(pool_.acquire(kGpu, stream, kKiB, kCapturing).data(), large);
  devices_->end_capture(stream);
  devices_->destroy_graphs();

  devices_->begin_capture(stream);
  EXPECT_EQ(pool_.acquire(kGpu, stream, kKiB, kCapturing).data(), small)
      << "the smallest that will do";
  EXPECT_EQ(pool_.acquire(kGpu, stream, kMiB, kCapturing).data(), large);
  devices_->destroy_graphs();
}

TEST_F(WorkspaceTest, AGraphOnANewStreamLeavesNothingInThePool) {
  impl::Stream stream = devices_->create_stream();
  devices_->begin_capture(stream);
  (void)pool_.acquire(kGpu, stream, kKiB, kCapturing);
  EXPECT_TRUE(pool_.statistics().empty());
  devices_->destroy_graphs();
}

TEST_F(WorkspaceTest, AGraphKeepsToTheCapAndTheMemory) {
  impl::Stream stream = devices_->create_stream();
  devices_->begin_capture(stream);
  expect_error(ErrorCode::OutOfMemory, {"cap is 128 MiB"},
               [&] { (void)pool_.acquire(kGpu, stream, 129 * kMiB, kCapturing); });
  devices_->limit_memory(kKiB);
  expect_error(ErrorCode::OutOfMemory, {"1048576 bytes", "cuda:0", "graph being captured"},
               [&] { (void)pool_.acquire(kGpu, stream, kMiB, kCapturing); });
}

}  // namespace
}  // namespace batten::testing
