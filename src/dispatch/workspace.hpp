// Scratch memory, pooled per device and stream and shared by all layers.
#pragma once

#include <batten/batten.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/device.hpp"

namespace batten::impl {

class WorkspacePool;

// Exclusive use of scratch while a call is being queued (CPU: while it runs). Ends with the scope.
class WorkspaceLease {
 public:
  WorkspaceLease() = default;
  WorkspaceLease(WorkspaceLease&& other) noexcept { *this = std::move(other); }
  WorkspaceLease& operator=(WorkspaceLease&& other) noexcept;
  ~WorkspaceLease() { release(); }

  void* data() const noexcept { return data_; }

 private:
  friend class WorkspacePool;
  enum class Kind { none, host_block, stream_slot, captured };

  void release() noexcept;

  Kind kind_ = Kind::none;
  void* data_ = nullptr;
  std::size_t size_ = 0;
  Device device_;
  Stream stream_ = nullptr;
  WorkspacePool* pool_ = nullptr;
  std::unique_lock<std::mutex> slot_lock_;  // keeps a stream's calls from mixing their launches
  std::shared_ptr<void> slot_;              // keeps the slot alive through a trim
};

// One pool a process. A GPU stream owns one growing block: work on a stream is ordered, so its
// calls may share it. CPU calls finish before they return, so blocks go back to a free list. What
// is captured on a stream shares a block likewise, which is the graph's until it ends: no replay
// allocates or frees. (So a graph must not run twice at the same time, as its outputs forbid
// anyway: kernels that wait for what others leave in the block might never end.) With a custom
// allocator each captured call allocates and frees.
class WorkspacePool {
 public:
  WorkspacePool();
  ~WorkspacePool();
  WorkspacePool(const WorkspacePool&) = delete;
  WorkspacePool& operator=(const WorkspacePool&) = delete;

  static WorkspacePool& instance();

  // The device is current; `capturing`: the stream is being captured. Zero bytes give an empty
  // lease. OutOfMemory naming the need and the cap, or the need and the device, when there is not
  // enough.
  WorkspaceLease acquire(Device device, Stream stream, std::size_t bytes, bool capturing = false);

  struct Statistics {
    Device device;
    std::uint64_t stream_id = 0;
    std::size_t bytes = 0;
  };
  std::vector<Statistics> statistics() const;
  std::size_t cap_bytes() const noexcept { return cap_bytes_; }

  // Frees everything that no call is using.
  void trim();

  // Null functions restore the default. Memory of the previous allocator is returned to it first.
  void set_allocator(batten_alloc_fn alloc, batten_free_fn release, void* user);

 private:
  friend class WorkspaceLease;
  struct Allocator {
    batten_alloc_fn alloc = nullptr;
    batten_free_fn free = nullptr;
    void* user = nullptr;
  };
  struct Slot {
    std::mutex mutex;  // held by the lease
    void* data = nullptr;
    std::size_t bytes = 0;
    Device device;
    Stream stream = nullptr;
    Allocator allocator;   // that data came from
    bool retired = false;  // no longer in the pool; whoever waited for it looks again
  };
  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
    Allocator allocator;
  };

  // Memory of graphs, which they keep to their end; then it waits here for others. Outlives the
  // pool where graphs do.
  struct GraphMemory {
    struct Block {
      Device device;
      std::size_t bytes = 0;
      void* data = nullptr;
    };
    // What is captured on one stream into one graph.
    struct Capture {
      std::mutex mutex;           // held by the lease
      std::vector<Block> blocks;  // the last is in use, others are outgrown
    };
    using Key = std::pair<std::uint64_t, Stream>;  // the capture's id

    // Of ended graphs. The smallest that will do; an empty block if there is none.
    Block take(Device device, std::size_t bytes);

    std::mutex mutex;  // guards what follows
    std::map<Key, std::shared_ptr<Capture>> captures;
    std::vector<Block> idle;
  };

  std::shared_ptr<GraphMemory::Capture> capture_of(Stream stream);
  void* memory_of(GraphMemory::Capture& capture, Device device, std::size_t bytes);

  WorkspaceLease acquire_host(std::size_t bytes);
  WorkspaceLease acquire_device(Device device, Stream stream, std::size_t bytes);
  WorkspaceLease acquire_captured(Device device, Stream stream, std::size_t bytes);
  WorkspaceLease allocate_captured(const Allocator& allocator, Device device, Stream stream,
                                   std::size_t bytes);
  static void* allocate(const Allocator& a, Device device, std::size_t bytes,
                        Stream stream) noexcept;
  static void free(const Allocator& a, Device device, void* data, std::size_t bytes,
                   Stream stream) noexcept;
  static void free_slot(Slot& slot) noexcept;
  void retire_idle_slots() noexcept;  // mutex_ is held
  void free_idle_of_graphs() noexcept;
  void give_back_host(void* data, std::size_t bytes) noexcept;

  std::size_t cap_bytes_;
  mutable std::mutex mutex_;  // guards all below
  Allocator allocator_;
  std::map<std::pair<int, std::uint64_t>, std::shared_ptr<Slot>> slots_;  // (device, stream id)
  std::vector<Block> idle_host_;
  std::map<void*, Allocator> lent_host_;

  const std::shared_ptr<GraphMemory> of_graphs_ = std::make_shared<GraphMemory>();
};

}  // namespace batten::impl
