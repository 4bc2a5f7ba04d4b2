// One cuDNN SDPA graph with its execution plan. The only face of cudnn-frontend: its headers take
// twenty seconds to compile and are included in graph.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/cudnn/rules.hpp"
#include "core/device.hpp"

namespace batten::impl::cudnn {

// What a call gives to the graph. Members that the key has no use for are ignored.
struct GraphPointers {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const float* scale = nullptr;  // on the host, read before execute() returns
  const std::int32_t* lengths_q = nullptr;
  const std::int32_t* lengths_kv = nullptr;
  const std::int64_t* offsets_q = nullptr;  // in elements
  const std::int64_t* offsets_k = nullptr;
  const std::int64_t* offsets_v = nullptr;
  const std::int64_t* offsets_out = nullptr;
  const std::int64_t* offsets_lse = nullptr;
};

// Ready to run once it exists: its kernels are loaded. Immutable, shared between threads.
class Graph {
 public:
  virtual ~Graph() = default;

  // Queues the graph on the handle's stream. Throws Error{Device}.
  virtual void execute(void* handle, const GraphPointers& pointers, void* workspace) const = 0;

  virtual std::size_t workspace_size() const = 0;

  // The engine's compiled kernel: "sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_...".
  virtual const std::string& kernel() const = 0;

  // Bytes that restore() takes; empty when cuDNN cannot say.
  virtual std::vector<std::uint8_t> serialize() const = 0;
};

// Builds the graph for the handle's device; may take seconds. `arch` is 90 for sm90. Throws
// Error{Unsupported} with cuDNN's reason when no engine takes it. The handle's stream must be one
// of this thread alone that is not the default stream: kernels are loaded in a capture on it.
std::unique_ptr<Graph> build_graph(const GraphKey& key, void* handle, int arch);

// The graph that serialize() wrote, for the same key, device and version. Throws batten::Error when
// cuDNN does not take it.
std::unique_ptr<Graph> restore_graph(const GraphKey& key, void* handle,
                                     std::span<const std::uint8_t> bytes);

// The headers that graph.cpp was compiled with: "1.23.0" and 91900.
const char* frontend_version() noexcept;
std::size_t compiled_version() noexcept;

}  // namespace batten::impl::cudnn
