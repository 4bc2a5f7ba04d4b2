#include "dispatch/workspace.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/env.hpp"
#include "core/error.hpp"

namespace batten::impl {
namespace {

constexpr std::size_t kAlignment = 256;  // bytes
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::int64_t kDefaultCapMiB = 128;
// Blocks grow in steps, so that slowly rising needs do not reallocate each time.
constexpr std::size_t kGranularity = 64 * 1024;
// A program that makes streams without end must not keep scratch for each of them.
constexpr std::size_t kMaxSlots = 64;

std::size_t rounded(std::size_t bytes) {
  return (bytes + kGranularity - 1) / kGranularity * kGranularity;
}

}  // namespace

WorkspaceLease& WorkspaceLease::operator=(WorkspaceLease&& other) noexcept {
  if (this == &other) return *this;
  release();
  kind_ = std::exchange(other.kind_, Kind::none);
  data_ = std::exchange(other.data_, nullptr);
  size_ = other.size_;
  device_ = other.device_;
  stream_ = other.stream_;
  pool_ = other.pool_;
  slot_ = std::move(other.slot_);
  slot_lock_ = std::move(other.slot_lock_);
  return *this;
}

void WorkspaceLease::release() noexcept {
  switch (std::exchange(kind_, Kind::none)) {
    case Kind::none:
      break;
    case Kind::host_block:
      pool_->give_back_host(data_, size_);
      break;
    case Kind::stream_slot:
      slot_lock_.unlock();
      slot_.reset();
      break;
    case Kind::captured: {
      // Becomes a free node of the graph, after the nodes of the call.
      const auto* allocator = static_cast<const WorkspacePool::Allocator*>(slot_.get());
      WorkspacePool::free(*allocator, device_, data_, size_, stream_);
      slot_.reset();
      break;
    }
  }
  data_ = nullptr;
}

WorkspacePool::WorkspacePool()
    : cap_bytes_(static_cast<std::size_t>(
                     environment_int("BATTEN_WORKSPACE_MIB", 1, 1 << 20).value_or(kDefaultCapMiB)) *
                 kMiB) {}

WorkspacePool::~WorkspacePool() { trim(); }

WorkspacePool& WorkspacePool::instance() {
  static auto* pool = new WorkspacePool;  // never destroyed: the driver may be gone at exit
  return *pool;
}

void* WorkspacePool::allocate(const Allocator& a, Device device, std::size_t bytes,
                              Stream stream) noexcept {
  if (a.alloc != nullptr) {
    return a.alloc(a.user, {static_cast<std::int32_t>(device.type), device.index}, bytes, stream);
  }
  if (device.is_cpu()) return std::aligned_alloc(kAlignment, bytes);
  return device_runtime().allocate(bytes, stream);
}

void WorkspacePool::free(const Allocator& a, Device device, void* data, std::size_t bytes,
                         Stream stream) noexcept {
  if (a.free != nullptr) {
    a.free(a.user, {static_cast<std::int32_t>(device.type), device.index}, data, bytes, stream);
  } else if (device.is_cpu()) {
    std::free(data);
  } else {
    device_runtime().free(data, stream);
  }
}

WorkspaceLease WorkspacePool::acquire(Device device, Stream stream, std::size_t bytes,
                                      bool capturing) {
  if (bytes == 0) return {};
  if (bytes > cap_bytes_) {
    fail(ErrorCode::OutOfMemory,
         "workspace: this call needs {} bytes, the cap is {} MiB; raise BATTEN_WORKSPACE_MIB or "
         "give the call a workspace",
         bytes, cap_bytes_ / kMiB);
  }
  if (device.is_cpu()) return acquire_host(rounded(bytes));
  return capturing ? acquire_captured(device, stream, rounded(bytes))
                   : acquire_device(device, stream, rounded(bytes));
}

WorkspaceLease WorkspacePool::acquire_host(std::size_t bytes) {
  WorkspaceLease lease;
  lease.pool_ = this;
  const std::lock_guard lock(mutex_);
  // Giving a block back must not fail, so its place is made now.
  idle_host_.reserve(idle_host_.size() + lent_host_.size() + 1);
  const auto fits = std::find_if(idle_host_.begin(), idle_host_.end(),
                                 [&](const Block& b) { return b.bytes >= bytes; });
  Block block;
  if (fits != idle_host_.end()) {
    block = *fits;
    idle_host_.erase(fits);
  } else {
    // A larger block replaces an idle smaller one, so that the pool does not keep both.
    if (!idle_host_.empty()) {
      const Block small = idle_host_.back();
      idle_host_.pop_back();
      free(small.allocator, Device::cpu(), small.data, small.bytes, nullptr);
    }
    block = {allocate(allocator_, Device::cpu(), bytes, nullptr), bytes, allocator_};
    if (block.data == nullptr) {
      fail(ErrorCode::OutOfMemory, "workspace: no {} bytes of host memory for this call", bytes);
    }
  }
  lent_host_.emplace(block.data, block.allocator);
  lease.kind_ = WorkspaceLease::Kind::host_block;
  lease.data_ = block.data;
  lease.size_ = block.bytes;
  return lease;
}

void WorkspacePool::give_back_host(void* data, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto lent = lent_host_.find(data);
  idle_host_.push_back({data, bytes, lent->second});
  lent_host_.erase(lent);
}

WorkspaceLease WorkspacePool::acquire_captured(Device device, Stream stream, std::size_t bytes) {
  Allocator allocator;
  {
    const std::lock_guard lock(mutex_);
    allocator = allocator_;
  }
  // Who brings an allocator gets all memory from there.
  if (allocator.alloc != nullptr) return allocate_captured(allocator, device, stream, bytes);
  const std::shared_ptr<GraphMemory::Capture> capture = capture_of(stream);
  WorkspaceLease lease;
  lease.slot_lock_ = std::unique_lock(capture->mutex);
  lease.data_ = memory_of(*capture, device, bytes);
  lease.kind_ = WorkspaceLease::Kind::stream_slot;
  lease.size_ = bytes;
  lease.slot_ = capture;
  return lease;
}

// Allocated and freed by nodes of the graph, as far as the allocator makes any.
WorkspaceLease WorkspacePool::allocate_captured(const Allocator& allocator, Device device,
                                                Stream stream, std::size_t bytes) {
  WorkspaceLease lease;
  lease.pool_ = this;
  lease.device_ = device;
  lease.stream_ = stream;
  lease.slot_ = std::make_shared<Allocator>(allocator);
  lease.data_ = allocate(allocator, device, bytes, stream);
  if (lease.data_ == nullptr) {
    fail(ErrorCode::OutOfMemory, "workspace: no {} bytes on {} for the graph being captured", bytes,
         device.str());
  }
  lease.kind_ = WorkspaceLease::Kind::captured;
  lease.size_ = bytes;
  return lease;
}

std::shared_ptr<WorkspacePool::GraphMemory::Capture> WorkspacePool::capture_of(Stream stream) {
  const GraphMemory::Key key{device_runtime().capture_id(stream), stream};
  {
    const std::lock_guard lock(of_graphs_->mutex);
    const auto known = of_graphs_->captures.find(key);
    if (known != of_graphs_->captures.end()) return known->second;
    of_graphs_->captures.emplace(key, std::make_shared<GraphMemory::Capture>());
  }
  struct End {
    std::shared_ptr<GraphMemory> home;
    GraphMemory::Key key;
  };
  const auto give_back = [](void* context) {
    const std::unique_ptr<End> end(static_cast<End*>(context));
    const std::lock_guard lock(end->home->mutex);
    const auto ended = end->home->captures.extract(end->key);
    const auto& blocks = ended.mapped()->blocks;
    end->home->idle.insert(end->home->idle.end(), blocks.begin(), blocks.end());
  };
  device_runtime().at_end_of_graph(stream, give_back, new End{of_graphs_, key});
  const std::lock_guard lock(of_graphs_->mutex);
  return of_graphs_->captures.at(key);
}

WorkspacePool::GraphMemory::Block WorkspacePool::GraphMemory::take(Device device,
                                                                   std::size_t bytes) {
  const std::lock_guard lock(mutex);
  auto best = idle.end();
  for (auto it = idle.begin(); it != idle.end(); ++it) {
    if (it->device != device || it->bytes < bytes) continue;
    if (best == idle.end() || it->bytes < best->bytes) best = it;
  }
  if (best == idle.end()) return {};
  const Block block = *best;
  idle.erase(best);
  return block;
}

void* WorkspacePool::memory_of(GraphMemory::Capture& capture, Device device, std::size_t bytes) {
  auto& blocks = capture.blocks;
  if (!blocks.empty() && blocks.back().bytes >= bytes) return blocks.back().data;
  blocks.reserve(blocks.size() + 1);  // a block that was taken is not lost
  GraphMemory::Block block = of_graphs_->take(device, bytes);
  if (block.data == nullptr) {
    block = {device, bytes, device_runtime().allocate_outside_of_graphs(bytes)};
  }
  if (block.data == nullptr) {
    fail(ErrorCode::OutOfMemory, "workspace: no {} bytes on {} for the graph being captured", bytes,
         device.str());
  }
  blocks.push_back(block);
  return block.data;
}

void WorkspacePool::free_idle_of_graphs() noexcept {
  std::vector<GraphMemory::Block> idle;
  {
    const std::lock_guard lock(of_graphs_->mutex);
    idle.swap(of_graphs_->idle);
  }
  for (const GraphMemory::Block& block : idle) {
    try {
      const DeviceGuard guard(block.device);
      device_runtime().free_synchronously(block.data);
    } catch (...) {  // the device is lost, and its memory with it
    }
  }
}

WorkspaceLease WorkspacePool::acquire_device(Device device, Stream stream, std::size_t bytes) {
  WorkspaceLease lease;
  lease.pool_ = this;
  lease.device_ = device;
  lease.stream_ = stream;
  const std::pair key{device.index, device_runtime().stream_id(stream)};
  std::shared_ptr<Slot> slot;
  Allocator allocator;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      auto entry = slots_.find(key);
      if (entry == slots_.end()) {
        if (slots_.size() >= kMaxSlots) retire_idle_slots();
        entry = slots_.emplace(key, std::make_shared<Slot>()).first;
      }
      slot = entry->second;
      allocator = allocator_;
    }
    lease.slot_lock_ = std::unique_lock(slot->mutex);
    if (!slot->retired) break;
    lease.slot_lock_.unlock();  // retired between our look and our lock: look again
  }
  if (slot->bytes < bytes) {
    void* data = allocate(allocator, device, bytes, stream);
    if (data == nullptr) {
      fail(ErrorCode::OutOfMemory,
           "workspace: this call needs {} bytes on {}, and there is no memory left", bytes,
           device.str());
    }
    // Stream-ordered: earlier calls that use the old block are done before it is reused.
    if (slot->data != nullptr)
      free(slot->allocator, slot->device, slot->data, slot->bytes, slot->stream);
    slot->data = data;
    slot->bytes = bytes;
    slot->device = device;
    slot->stream = stream;
    slot->allocator = allocator;
  }
  lease.kind_ = WorkspaceLease::Kind::stream_slot;
  lease.data_ = slot->data;
  lease.size_ = slot->bytes;
  lease.slot_ = std::move(slot);
  return lease;
}

std::vector<WorkspacePool::Statistics> WorkspacePool::statistics() const {
  const std::lock_guard lock(mutex_);
  std::vector<Statistics> all;
  std::size_t host = 0;
  for (const Block& block : idle_host_) host += block.bytes;
  if (host > 0) all.push_back({.device = Device::cpu(), .stream_id = 0, .bytes = host});
  for (const auto& [key, slot] : slots_) {
    const std::lock_guard slot_lock(slot->mutex);
    all.push_back(
        {.device = Device::cuda(key.first), .stream_id = key.second, .bytes = slot->bytes});
  }
  return all;
}

void WorkspacePool::free_slot(Slot& slot) noexcept {
  if (slot.data == nullptr) return;
  try {
    const DeviceGuard guard(slot.device);
    // The stream may be gone by now, so it must not be named; a custom allocator gets the default
    // one.
    if (slot.allocator.free != nullptr) {
      free(slot.allocator, slot.device, slot.data, slot.bytes, nullptr);
    } else {
      device_runtime().free_synchronously(slot.data);
    }
  } catch (...) {  // the device is lost, and its memory with it
  }
  slot.data = nullptr;
  slot.bytes = 0;
}

void WorkspacePool::trim() {
  const std::lock_guard lock(mutex_);
  for (const Block& block : idle_host_) {
    free(block.allocator, Device::cpu(), block.data, block.bytes, nullptr);
  }
  idle_host_.clear();
  retire_idle_slots();
  free_idle_of_graphs();
}

void WorkspacePool::retire_idle_slots() noexcept {
  for (auto it = slots_.begin(); it != slots_.end();) {
    const std::shared_ptr<Slot> slot = it->second;
    const std::unique_lock slot_lock(slot->mutex, std::try_to_lock);
    if (!slot_lock) {
      ++it;
      continue;
    }
    free_slot(*slot);
    slot->retired = true;
    it = slots_.erase(it);
  }
}

void WorkspacePool::set_allocator(batten_alloc_fn alloc, batten_free_fn release, void* user) {
  trim();
  const std::lock_guard lock(mutex_);
  allocator_ = {alloc, release, user};
}

}  // namespace batten::impl
