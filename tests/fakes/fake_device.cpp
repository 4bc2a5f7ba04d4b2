#include "fakes/fake_device.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.hpp"
#include "dispatch/plan_cache.hpp"
#include "dispatch/workspace.hpp"

namespace batten::testing {
namespace {

constexpr std::size_t kAlignment = 256;  // bytes, as DeviceRuntime promises

const char* name_of(DeviceCall call) {
  switch (call) {
    case DeviceCall::current_device:
      return "current_device";
    case DeviceCall::set_current_device:
      return "set_current_device";
    case DeviceCall::stream_id:
      return "stream_id";
    case DeviceCall::is_capturing:
      return "is_capturing";
    case DeviceCall::synchronize:
      return "synchronize";
    case DeviceCall::copy_to_host:
      return "copy_to_host";
    case DeviceCall::check_last_error:
      return "check_last_error";
    case DeviceCall::properties:
      return "properties";
  }
  return "unknown";
}

}  // namespace

FakeDeviceRuntime::FakeDeviceRuntime(int devices) {
  for (int i = 0; i < devices; ++i) {
    properties_.push_back({.name = fmt::format("Fake H{}", 100 + i),
                           .major = 9,
                           .minor = 0,
                           .multiprocessors = 132,
                           .l2_bytes = std::size_t{50} << 20,
                           .shared_memory_per_block = 227 * 1024,
                           .total_memory = std::size_t{80} << 30,
                           .clock_mhz = 1980,
                           .memory_gbps = 3350});
  }
}

FakeDeviceRuntime::~FakeDeviceRuntime() {
  for (const auto& [data, block] : blocks_) std::free(const_cast<void*>(data));
}

void FakeDeviceRuntime::maybe_fail(DeviceCall call) const {
  int& left = failures_[static_cast<std::size_t>(call)];
  if (left == 0) return;
  --left;
  fail(ErrorCode::Device, "{}: the fake device reported a failure", name_of(call));
}

int FakeDeviceRuntime::current_locked() const {
  const auto found = current_.find(std::this_thread::get_id());
  return found == current_.end() ? 0 : found->second;
}

const FakeDeviceRuntime::StreamState* FakeDeviceRuntime::find(impl::Stream stream) const {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : &found->second;
}

void FakeDeviceRuntime::misuse(std::string what) const { misuses_.push_back(std::move(what)); }

const impl::DeviceProperties& FakeDeviceRuntime::properties(int index) const {
  const std::lock_guard lock(mutex_);
  maybe_fail(DeviceCall::properties);
  return properties_.at(static_cast<std::size_t>(index));
}

int FakeDeviceRuntime::current_device() const {
  const std::lock_guard lock(mutex_);
  maybe_fail(DeviceCall::current_device);
  return current_locked();
}

void FakeDeviceRuntime::set_current_device(int index) {
  const std::lock_guard lock(mutex_);
  maybe_fail(DeviceCall::set_current_device);
  if (index < 0 || index >= device_count()) misuse(fmt::format("device {} made current", index));
  ++counts_.device_switches;
  current_[std::this_thread::get_id()] = index;
}

void* FakeDeviceRuntime::allocate(std::size_t bytes, impl::Stream stream) noexcept {
  const std::lock_guard lock(mutex_);
  const int device = current_locked();
  const StreamState* state = find(stream);
  if (bytes == 0) misuse("an allocation of no bytes");
  if (stream != nullptr && state == nullptr) misuse("an allocation on a dead stream");
  if (state != nullptr && state->device != device) {
    misuse(
        fmt::format("an allocation on device {} for a stream of device {}", device, state->device));
  }
  const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = in_use_ + bytes > limit_ ? nullptr : std::aligned_alloc(kAlignment, size);
  if (data == nullptr) {
    ++counts_.refused;
    return nullptr;
  }
  const bool captured = state != nullptr && state->capturing;
  ++counts_.allocations;
  counts_.graph_allocations += captured ? 1 : 0;
  in_use_ += bytes;
  blocks_[data] = {.bytes = bytes, .device = device, .of_graph = captured};
  return data;
}

void FakeDeviceRuntime::forget(void* data) {
  const auto found = blocks_.find(data);
  if (found == blocks_.end()) {
    misuse("a free of memory that is not allocated");
    return;
  }
  in_use_ -= found->second.bytes;
  blocks_.erase(found);
  std::free(data);
}

void* FakeDeviceRuntime::allocate_outside_of_graphs(std::size_t bytes) {
  return allocate(bytes, nullptr);
}

std::uint64_t FakeDeviceRuntime::capture_id(impl::Stream stream) {
  const std::lock_guard lock(mutex_);
  const StreamState* state = find(stream);
  if (state == nullptr || !state->capturing) {
    misuse("the number of a capture that is not under way");
    return 0;
  }
  return state->capture;
}

void FakeDeviceRuntime::at_end_of_graph(impl::Stream stream, void (*release)(void*),
                                        void* context) {
  const std::lock_guard lock(mutex_);
  const StreamState* state = find(stream);
  if (state == nullptr || !state->capturing) misuse("the end of a graph that is not captured");
  ends_of_graphs_.emplace_back(release, context);
}

void FakeDeviceRuntime::destroy_graphs() {
  std::vector<std::pair<void (*)(void*), void*>> ends;
  {
    const std::lock_guard lock(mutex_);
    ends.swap(ends_of_graphs_);
  }
  for (const auto& [release, context] : ends) release(context);
}

void FakeDeviceRuntime::free(void* data, impl::Stream stream) noexcept {
  const std::lock_guard lock(mutex_);
  const StreamState* state = find(stream);
  const bool capturing = state != nullptr && state->capturing;
  if (stream != nullptr && state == nullptr) misuse("a free on a dead stream");
  if (const auto found = blocks_.find(data); found != blocks_.end()) {
    if (state != nullptr && state->device != found->second.device) {
      misuse("a free on a stream of another device");
    }
    if (capturing && !found->second.of_graph) misuse("a graph frees memory that is not its own");
    if (!capturing && found->second.of_graph) misuse("a graph's memory is freed outside of it");
  }
  ++counts_.frees;
  counts_.graph_frees += capturing ? 1 : 0;
  forget(data);
}

void FakeDeviceRuntime::free_synchronously(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  if (const auto found = blocks_.find(data);
      found != blocks_.end() && found->second.device != current_locked()) {
    misuse("a synchronous free while another device is current");
  }
  ++counts_.synchronous_frees;
  forget(data);
}

std::uint64_t FakeDeviceRuntime::stream_id(impl::Stream stream) const {
  const std::lock_guard lock(mutex_);
  maybe_fail(DeviceCall::stream_id);
  if (stream == nullptr) return 1;  // the default stream, of each device
  const StreamState* state = find(stream);
  if (state == nullptr) fail(ErrorCode::Device, "stream_id: no such stream");
  return state->id;
}

bool FakeDeviceRuntime::is_capturing(impl::Stream stream) const {
  const std::lock_guard lock(mutex_);
  maybe_fail(DeviceCall::is_capturing);
  const StreamState* state = find(stream);
  return state != nullptr && state->capturing;
}

void FakeDeviceRuntime::synchronize(impl::Stream stream) {
  const std::lock_guard lock(mutex_);
  maybe_fail(DeviceCall::synchronize);
  const StreamState* state = find(stream);
  if (state != nullptr && state->capturing) {
    fail(ErrorCode::Device, "synchronize: not permitted while the stream is being captured");
  }
  ++counts_.synchronisations;
}

void FakeDeviceRuntime::copy_to_host(void* host, const void* device, std::size_t bytes,
                                     impl::Stream) {
  const std::lock_guard lock(mutex_);
  maybe_fail(DeviceCall::copy_to_host);
  ++counts_.copies;
  if (bytes > 0) std::memcpy(host, device, bytes);
}

void FakeDeviceRuntime::check_last_error(const char* what) {
  const std::lock_guard lock(mutex_);
  int& left = failures_[static_cast<std::size_t>(DeviceCall::check_last_error)];
  if (left == 0) return;
  --left;
  fail(ErrorCode::Device, "{}: an illegal memory access was encountered", what);
}

impl::Stream FakeDeviceRuntime::create_stream(int device) {
  impl::Stream handle = nullptr;
  {
    const std::lock_guard lock(mutex_);
    handle = reinterpret_cast<impl::Stream>(next_handle_);
    next_handle_ += 0x10;
  }
  create_stream_at(handle, device);
  return handle;
}

void FakeDeviceRuntime::create_stream_at(impl::Stream handle, int device) {
  const std::lock_guard lock(mutex_);
  if (streams_.contains(handle)) misuse("the test made a stream over a living one");
  streams_[handle] = {.id = next_id_++, .device = device};
}

void FakeDeviceRuntime::destroy_stream(impl::Stream stream) {
  const std::lock_guard lock(mutex_);
  if (streams_.erase(stream) == 0) misuse("the test destroyed a stream that is not there");
}

void FakeDeviceRuntime::begin_capture(impl::Stream stream) {
  const std::lock_guard lock(mutex_);
  streams_.at(stream).capturing = true;
  streams_.at(stream).capture = next_id_++;
}

void FakeDeviceRuntime::end_capture(impl::Stream stream) {
  const std::lock_guard lock(mutex_);
  streams_.at(stream).capturing = false;
}

void FakeDeviceRuntime::limit_memory(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}

void FakeDeviceRuntime::fail_next(DeviceCall call, int times) {
  const std::lock_guard lock(mutex_);
  failures_[static_cast<std::size_t>(call)] = times;
}

impl::DeviceProperties& FakeDeviceRuntime::change_properties(int index) {
  const std::lock_guard lock(mutex_);
  return properties_.at(static_cast<std::size_t>(index));
}

DeviceCounts FakeDeviceRuntime::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::size_t FakeDeviceRuntime::bytes_in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

int FakeDeviceRuntime::blocks_in_use() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(blocks_.size());
}

bool FakeDeviceRuntime::owns(const void* data, std::size_t bytes, int device) const {
  const std::lock_guard lock(mutex_);
  auto after = blocks_.upper_bound(data);
  if (after == blocks_.begin()) return false;
  const auto& [base, block] = *std::prev(after);
  const auto offset =
      static_cast<std::size_t>(static_cast<const char*>(data) - static_cast<const char*>(base));
  return block.device == device && offset + bytes <= block.bytes;
}

std::vector<std::string> FakeDeviceRuntime::misuses() const {
  const std::lock_guard lock(mutex_);
  return misuses_;
}

FakeDevices::FakeDevices(int devices) : runtime_(devices) {
  impl::set_device_runtime_for_test(&runtime_);
}

FakeDevices::~FakeDevices() {
  runtime_.destroy_graphs();
  impl::WorkspacePool::instance().set_allocator(nullptr, nullptr, nullptr);  // trims
  impl::PlanCache::instance().clear();
  impl::set_device_runtime_for_test(nullptr);
  for (const std::string& misuse : runtime_.misuses()) ADD_FAILURE() << "fake device: " << misuse;
  EXPECT_EQ(runtime_.blocks_in_use(), 0) << "fake device: memory was not given back";
}

}  // namespace batten::testing
