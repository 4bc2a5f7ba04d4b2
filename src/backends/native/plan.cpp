#include "backends/native/plan.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "backends/native/rules.hpp"
#include "backends/native/sm90/arguments.hpp"
#include "backends/native/sm90/instances.hpp"
#include "backends/native/sm90/tensor_map.hpp"
#include "core/cuda_runtime.hpp"
#include "core/error.hpp"

namespace batten::impl::native {
namespace {

using sm90::Arguments;
using sm90::Divisor;
using sm90::Instance;

constexpr double kLog2E = 1.4426950408889634;
// Bits of a CTA's list of tiles to compute again (SharedMemory::redo).
constexpr int kRedoBits = 512;

// Counters that a kernel may add to: on the host, so that reading one waits for nothing, and never
// freed, because a captured graph keeps the address. Plans beyond the last counter share them.
std::uint32_t* next_counter() {
  constexpr std::size_t kCounters = 1024;
  static std::uint32_t* const counters = [] {
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, kCounters * sizeof(std::uint32_t),
                             cudaHostAllocMapped | cudaHostAllocPortable),
               "native: cudaHostAlloc");
    std::fill_n(static_cast<std::uint32_t*>(memory), kCounters, 0u);
    return static_cast<std::uint32_t*>(memory);
  }();
  static std::atomic<std::size_t> next{0};
  return counters + next++ % kCounters;
}

// The kernels multiply scores by this before anything else. A product of 0 and the infinity that
// stands for a masked score would be NaN; at the smallest number all logits are 0 just as well.
float folded(double scale) {
  const auto scale_log2 = static_cast<float>(scale * kLog2E);
  return scale_log2 == 0 ? std::numeric_limits<float>::denorm_min() : scale_log2;
}

sm90::Steps steps_of(const Layout& layout) {
  return {.sample = layout.batch != 0, .head = layout.head != 0};
}

// The tensor maps of the last few calls: a model calls with the same tensors again and again, and
// encoding four maps takes as long as a launch. A thread that finds another one here encodes for
// itself.
class MapCache {
 public:
  struct Key {
    const void* data[4];  // q, k, v, out
    Layout layouts[4];

    bool operator==(const Key&) const = default;
  };
  using Maps = std::array<CUtensorMap, 4>;

  template <class Encode>
  void get(const Key& key, CUtensorMap* const (&to)[4], const Encode& encode) {
    const auto give = [&](const Maps& maps) {
      for (std::size_t i = 0; i < maps.size(); ++i) *to[i] = maps[i];
    };
    if (busy_.test_and_set(std::memory_order_acquire)) {
      give(encode());
      return;
    }
    const auto found = std::ranges::find(keys_, key);
    auto i = static_cast<std::size_t>(found - keys_.begin());
    if (found == keys_.end()) {
      try {
        i = next_;
        maps_[i] = encode();
        keys_[i] = key;
        next_ = (next_ + 1) % kEntries;
      } catch (...) {
        keys_[i] = {};
        busy_.clear(std::memory_order_release);
        throw;
      }
    }
    give(maps_[i]);
    busy_.clear(std::memory_order_release);
  }

 private:
  static constexpr std::size_t kEntries = 8;
  std::atomic_flag busy_;
  std::array<Key, kEntries> keys_{};  // no call has null pointers throughout
  std::array<Maps, kEntries> maps_;
  std::size_t next_ = 0;
};

class NativePlan final : public Plan {
 public:
  NativePlan(const Problem& problem, const Shape& shape, Device device,
             const BackendOptions& options)
      : problem_(problem),
        instance_(sm90::find_instance(problem.dtype, problem.head_dim, problem.mask != Mask::none,
                                      block_keys(problem, shape, options.form))),
        online_(options.form == kOnline),
        multiprocessors_(device_runtime().properties(device.index).multiprocessors),
        redone_(next_counter()) {
    if (instance_.function == nullptr) {
      fail(ErrorCode::Internal, "native: no kernel for head_dim {}", problem.head_dim);
    }
    row_tiles_ = static_cast<std::int32_t>((shape.max_q + instance_.rows - 1) / instance_.rows);
    if (instance_.causal) {
      const auto samples = static_cast<int>(std::min(shape.batch, step_of(shape)));
      const std::int64_t head_bytes = 2 * shape.max_kv * problem.head_dim *
                                      static_cast<std::int64_t>(size_of(problem.dtype)) *
                                      problem.num_kv_heads / problem.num_heads;
      const int heads = samples * problem.num_heads;
      section_heads_ = section_heads(row_tiles_, heads,
                                     std::min(heads * row_tiles_, multiprocessors_), head_bytes);
    }
    sm90::load_encoder();
    check_cuda(cudaFuncSetAttribute(instance_.function,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    instance_.shared_bytes),
               "native: cudaFuncSetAttribute");
    const bool lengths = shape.q_lengths != Source::none || shape.kv_lengths != Source::none;
    info_.form = lengths ? "lengths" : "dense";
    info_.kernel = instance_.kernel;
    info_.kernel += online_ ? ", online softmax" : ", lazy softmax";
    info_.tile = instance_.tile;
  }

  void run(const Shape& shape, const Call& call, void* /*workspace*/) const override {
    Arguments a = arguments_of(shape, call);
    const std::int64_t step = step_of(shape);
    for (std::int64_t first = 0; first < shape.batch; first += step) {
      const std::int64_t samples = std::min(step, shape.batch - first);
      a.first_sample = static_cast<std::int32_t>(first);
      int position = 0;
      const auto place = [&](Source source, const std::int32_t* lengths, const std::int32_t*& device,
                             std::int32_t& where) {
        if (source == Source::device) device = lengths + first;
        if (source != Source::host) return;
        where = position;
        std::copy_n(lengths + first, samples, a.host_lengths + position);
        position += static_cast<int>(samples);
      };
      place(shape.q_lengths, call.q_lengths, a.q_lengths, a.q_position);
      place(shape.kv_lengths, call.kv_lengths, a.kv_lengths, a.kv_position);
      launch(a, static_cast<int>(samples), call.stream);
    }
  }

 private:
  // Samples of a launch.
  static std::int64_t step_of(const Shape& shape) {
    const bool on_host = shape.q_lengths == Source::host || shape.kv_lengths == Source::host;
    return on_host ? sm90::kHostSamples : shape.batch;
  }

  // All of a launch but the samples that it computes.
  Arguments arguments_of(const Shape& shape, const Call& call) const {
    Arguments a;
    const auto map = [&](const void* data, std::int64_t rows, std::int64_t heads,
                         const Layout& layout, int box_rows) {
      // A tensor without rows is never read, but its map wants an address.
      if (data == nullptr || rows == 0) data = call.out;
      return sm90::encode(data, {problem_.dtype, shape.batch, rows, heads, problem_.head_dim},
                          layout, instance_.columns, box_rows);
    };
    a.output_is_f32 = problem_.out_dtype == DType::f32;
    maps_.get({{call.q, call.k, call.v, call.out}, {shape.q, shape.k, shape.v, shape.out}},
              {&a.q, &a.k, &a.v, &a.out}, [&] {
                MapCache::Maps maps;
                maps[0] = map(call.q, shape.max_q, problem_.num_heads, shape.q,
                              instance_.q_box_rows);
                maps[1] = map(call.k, shape.max_kv, problem_.num_kv_heads, shape.k, instance_.keys);
                maps[2] = map(call.v, shape.max_kv, problem_.num_kv_heads, shape.v, instance_.keys);
                maps[3] = a.output_is_f32 ? maps[0]
                                          : map(call.out, shape.max_q, problem_.num_heads,
                                                shape.out, instance_.out_box_rows);
                return maps;
              });
    a.output = call.out;
    a.lse = call.lse;
    a.out_layout = shape.out;
    a.lse_layout = shape.lse_layout;
    a.max_q = static_cast<std::int32_t>(shape.max_q);
    a.max_kv = static_cast<std::int32_t>(shape.max_kv);
    a.num_heads = problem_.num_heads;
    a.heads = Divisor(static_cast<std::uint32_t>(problem_.num_heads));
    a.group = Divisor(static_cast<std::uint32_t>(problem_.num_heads / problem_.num_kv_heads));
    a.q_steps = steps_of(shape.q);
    a.k_steps = steps_of(shape.k);
    a.v_steps = steps_of(shape.v);
    a.row_tiles = row_tiles_;
    a.per_head = Divisor(static_cast<std::uint32_t>(a.row_tiles));
    a.scale_log2 = folded(call.scale);
    a.bottom_right = problem_.mask == Mask::causal;
    a.clear_tail = shape.kv_lengths != Source::none && !shape.padding_is_finite;
    a.online = online_;
    a.redone = online_ ? nullptr : redone_;
    return a;
  }

  void launch(Arguments& a, int samples, Stream stream) const {
    const int heads = samples * problem_.num_heads;
    a.tiles = heads * a.row_tiles;
    const int ctas = std::min(a.tiles, multiprocessors_);
    const int rounds = (a.tiles + ctas - 1) / ctas;
    a.redo_shift = 0;
    while (rounds >> a.redo_shift >= kRedoBits) ++a.redo_shift;
    if (instance_.causal) {
      a.section_heads = std::min(section_heads_, heads);
      a.last_section = (heads - 1) / a.section_heads;
      a.per_section = Divisor(static_cast<std::uint32_t>(a.row_tiles * a.section_heads));
      a.heads_of_section = Divisor(static_cast<std::uint32_t>(a.section_heads));
      a.heads_of_last =
          Divisor(static_cast<std::uint32_t>(heads - a.last_section * a.section_heads));
    }
    void* parameters[] = {&a};
    check_cuda(cudaLaunchKernel(instance_.function, dim3(static_cast<unsigned>(ctas)),
                                dim3(static_cast<unsigned>(instance_.threads)), parameters,
                                static_cast<std::size_t>(instance_.shared_bytes),
                                static_cast<cudaStream_t>(stream)),
               "native: launching the forward kernel");
  }

  Problem problem_;
  Instance instance_;
  bool online_;
  int multiprocessors_;
  std::int32_t row_tiles_ = 1;
  int section_heads_ = 1;  // causal
  std::uint32_t* redone_;
  mutable MapCache maps_;
};

}  // namespace

std::shared_ptr<const Plan> make_plan(const Problem& problem, const Shape& shape, Device device,
                                      const BackendOptions& options) {
  return std::make_shared<NativePlan>(problem, shape, device, options);
}

}  // namespace batten::impl::native
