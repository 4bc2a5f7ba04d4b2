#include "backends/native/plan.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>

#include "backends/native/combine.hpp"
#include "backends/native/division.hpp"
#include "backends/native/launch.hpp"
#include "backends/native/order.hpp"
#include "backends/native/redo_watch.hpp"
#include "backends/native/rules.hpp"
#include "backends/native/shared/arguments.hpp"
#include "backends/native/sm80/arguments.hpp"
#include "backends/native/sm80/instances.hpp"
#include "backends/native/sm90/instances.hpp"
#include "backends/native/sm90/tensor_map.hpp"
#include "backends/native/target.hpp"
#include "core/cuda_runtime.hpp"
#include "core/error.hpp"

namespace batten::impl::native {
namespace {

// What the kernels of both families are given: sm90's, the base of it.
using Arguments = sm80::Arguments;

constexpr double kLog2E = 1.4426950408889634;

// Where a plan's kernels count, and what the host sees of it.
struct Counts {
  RedoCounts* device = nullptr;
  RedoCounts* host = nullptr;
};

// The host's are read without waiting. Neither is ever freed, because a captured graph keeps the
// addresses. Plans beyond the last counts share them. The device is current.
Counts next_counts(int device) {
  constexpr std::size_t kCounts = 1024;
  struct Pool {
    Counts first;
    std::size_t next = 0;
  };
  static auto& mutex = *new std::mutex;
  static auto& pools = *new std::map<int, Pool>;
  const std::lock_guard lock(mutex);
  Pool& pool = pools[device];
  if (pool.first.host == nullptr) {
    const RelaxedCapture relaxed;
    constexpr std::size_t kBytes = kCounts * sizeof(RedoCounts);
    void *of_device = nullptr, *of_host = nullptr;
    check_cuda(cudaMalloc(&of_device, kBytes), "native: cudaMalloc");
    // Not on the default stream: it waits for streams that someone may be capturing.
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
               "native: cudaStreamCreate");
    check_cuda(cudaMemsetAsync(of_device, 0, kBytes, stream), "native: cudaMemsetAsync");
    check_cuda(cudaStreamSynchronize(stream), "native: cudaStreamSynchronize");
    check_cuda(cudaStreamDestroy(stream), "native: cudaStreamDestroy");
    check_cuda(cudaHostAlloc(&of_host, kBytes, cudaHostAllocMapped | cudaHostAllocPortable),
               "native: cudaHostAlloc");
    pool.first = {static_cast<RedoCounts*>(of_device), static_cast<RedoCounts*>(of_host)};
    std::uninitialized_default_construct_n(pool.first.host, kCounts);
  }
  const std::size_t i = pool.next++ % kCounts;
  return {pool.first.device + i, pool.first.host + i};
}

// As CUDA's atomics have it.
unsigned long long* device_word(std::uint64_t& count) {
  static_assert(sizeof(count) == sizeof(unsigned long long));
  return reinterpret_cast<unsigned long long*>(&count);
}

// The kernels multiply scores by this before anything else. A product of 0 and the infinity that
// stands for a masked score would be NaN; at the smallest number all logits are 0 just as well.
float folded(double scale) {
  const auto scale_log2 = static_cast<float>(scale * kLog2E);
  return scale_log2 == 0 ? std::numeric_limits<float>::denorm_min() : scale_log2;
}

std::uint64_t new_mark() {
  std::random_device random;
  return (std::uint64_t{random()} << 32 | random()) & ~std::uint64_t{3};
}

Steps steps_of(const Layout& layout) {
  return {.sample = layout.batch != 0, .head = layout.head != 0};
}

// The tensor maps of the last few calls: a model calls with the same tensors again and again, and
// encoding four maps takes as long as a launch. A thread that finds another one here encodes for
// itself.
class MapCache {
 public:
  // All that maps are made of and a plan does not fix: packed calls of one plan differ in rows.
  struct Key {
    const void* data[4];  // q, k, v, out
    Layout layouts[4];
    std::int64_t batch;
    std::int64_t rows_q, rows_kv;

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

Instance instance_of(const Target& target, const Problem& problem, const Kernel& kernel) {
  if (target.family == Family::sm80)
    return sm80::find_instance(problem.dtype, kernel.configuration);
  return sm90::find_instance(problem.dtype, problem.head_dim, problem.mask != Mask::none,
                             kernel.keys);
}

class NativePlan final : public Plan {
 public:
  NativePlan(const Problem& problem, const Shape& shape, Device device,
             const BackendOptions& options)
      : problem_(problem),
        target_(target_of(device_runtime().properties(device.index))),
        kernel_(kernel_of(target_, problem, shape, options.form)),
        instance_(instance_of(target_, problem, kernel_)),
        online_(options.form == kOnline),
        choice_(choose_division(problem, shape, options.form, kernel_.keys, kernel_.workers)),
        counts_(next_counts(device.index)),
        // What earlier calls held must not decide how a sample is computed.
        watch_(*counts_.host, /*may_switch=*/!problem.batch_invariant) {
    if (instance_.function == nullptr) {
      fail(ErrorCode::Internal, "native: no kernel for head_dim {}", problem.head_dim);
    }
    row_tiles_ = static_cast<std::int32_t>((shape.max_q + instance_.rows - 1) / instance_.rows);
    samples_of_launch_ = static_cast<int>(samples_of_launch(problem, shape, kernel_.workers.ctas));
    if (is_causal() && shape.batch * row_tiles_ > 0) {
      const std::int64_t head_bytes = shape.max_kv * key_bytes_of_head();
      const int heads = samples_of_launch_ * problem.num_heads;
      section_heads_ = section_heads(
          row_tiles_, heads, std::min(heads * row_tiles_, kernel_.workers.ctas), head_bytes);
    }
    if (uses_maps()) sm90::load_encoder();
    const bool lengths = shape.q_lengths != Source::none || shape.kv_lengths != Source::none;
    info_.form = shape.packed ? "packed" : lengths ? "lengths" : "dense";
    info_.kernel = instance_.kernel;
    info_.kernel += online_ ? ", online softmax" : ", lazy softmax";
    info_.tile = instance_.tile;
    if (takes_tiles(problem, shape, kernel_.workers.ctas)) {
      cached_keys_ = static_cast<std::int32_t>(kCachedBytes / key_bytes_of_head());
      load_order();
      info_.workspace_size = deal_bytes(samples_of_launch_, kernel_.workers.ctas);
    }
    load_kernel(choice_.joins ? instance_.joining : instance_.function);
    if (deals() && instance_.dealing != nullptr) load_kernel(instance_.dealing);
    if (choice_.joins) {
      info_.kernel += ", joined tiles";
      info_.splits = (division_.all_shares() + division_.tiles - 1) / division_.tiles;
      info_.workspace_size = join_bytes(division_, problem.head_dim).all();
      mark_ = new_mark();
    } else if (division_.divides()) {
      info_.kernel += ", divided tiles";
      load_combine(division_, out_dtype());
      info_.splits = (division_.all_shares() + division_.tiles - 1) / division_.tiles;
      info_.workspace_size =
          part_output_bytes(division_, problem.head_dim) + part_lse_bytes(division_);
    }
  }

  void run(const Shape& shape, const Call& call, void* workspace) const override {
    const std::int64_t tiles = division_.divides() ? division_.whole + division_.parts()
                                                   : most_tiles(problem_, shape, shape.batch);
    // No sample may have a query, or none has.
    if (tiles == 0 || (shape.packed && shape.tokens_q == 0)) return;
    Arguments a = arguments_of(shape, call);
    const bool captured = call.capturing;
    a.online = online_ || (captured ? watch_.online() : watch_.call(tiles));
    if (a.online == 0) {
      const auto count = captured ? &RedoCounts::of_graphs : &RedoCounts::of_calls;
      a.redone = device_word(counts_.device->*count);
      a.redone_on_host = device_word(counts_.host->*count);
    }

    if (choice_.joins) {
      run_joined(a, call.stream, workspace);
      return;
    }
    if (division_.divides()) {
      if (division_.whole > 0) launch_tiles(a, division_.whole, call.stream);
      run_divided(a, call.stream, workspace);
      return;
    }
    // Offsets and a packed call's rows are not in a plan's key: samples may be fewer than
    // samples_of_launch_, and tiles too many to be taken.
    const std::int64_t step = samples_of_launch(problem_, shape, kernel_.workers.ctas);
    const bool takes = deals() && takes_tiles(problem_, shape, kernel_.workers.ctas);
    for (std::int64_t first = 0; first < shape.batch; first += step) {
      const std::int64_t samples = std::min(step, shape.batch - first);
      a.first_sample = static_cast<std::int32_t>(first);
      std::int64_t position = 0;
      const auto place = [&](Source source, const std::int32_t* numbers, std::int64_t count) {
        Array array;
        if (source == Source::device) array.device = numbers + first;
        if (source == Source::host) {
          array.position = static_cast<std::int32_t>(position);
          std::copy_n(numbers + first, count, a.numbers + position);
          position += count;
        }
        return array;
      };
      a.q_lengths = place(shape.q_lengths, call.q_lengths, samples);
      a.kv_lengths = place(shape.kv_lengths, call.kv_lengths, samples);
      a.offsets_q = place(shape.offsets_q, call.offsets_q, samples + 1);
      a.offsets_kv = place(shape.offsets_kv, call.offsets_kv, samples + 1);
      if (takes) {
        a.deal = deal_in(workspace, static_cast<int>(samples), cached_keys_);
        order_samples(a, target_.overlaps_launches(), call.stream);
      }
      launch_samples(a, static_cast<int>(samples), most_tiles(problem_, shape, samples),
                     call.stream);
    }
  }

  std::string remark() const override { return online_ ? std::string() : watch_.remark(); }

 private:
  bool uses_maps() const { return instance_.columns > 0; }
  bool is_causal() const { return problem_.mask != Mask::none; }

  // Whether a call's tiles may be taken one by one.
  bool deals() const { return cached_keys_ > 0; }

  const void* function_of(const Arguments& a) const {
    if (choice_.joins) return instance_.joining;
    return a.deal.samples != nullptr && instance_.dealing != nullptr ? instance_.dealing
                                                                     : instance_.function;
  }

  void load_kernel(const void* function) const {
    const auto set = [&](cudaFuncAttribute attribute, int value) {
      check_cuda(cudaFuncSetAttribute(function, attribute, value), "native: cudaFuncSetAttribute");
    };
    set(cudaFuncAttributeMaxDynamicSharedMemorySize, instance_.shared_bytes);
    // As many CTAs share a multiprocessor as its memory has room for.
    if (!uses_maps()) {
      set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    }
  }

  DType out_dtype() const {
    return problem_.out_dtype == DType::none ? problem_.dtype : problem_.out_dtype;
  }

  // Of a key and its value, shared among the query heads that use them; at least 1.
  std::int64_t key_bytes_of_head() const {
    const std::int64_t bytes =
        2 * problem_.head_dim * static_cast<std::int64_t>(size_of(problem_.dtype));
    return std::max<std::int64_t>(bytes * problem_.num_kv_heads / problem_.num_heads, 1);
  }

  // All of a launch but the samples that it computes.
  Arguments arguments_of(const Shape& shape, const Call& call) const {
    Arguments a;
    a.packed = shape.packed;
    a.rows_q = static_cast<std::int32_t>(shape.packed ? shape.tokens_q : shape.max_q);
    a.rows_kv = static_cast<std::int32_t>(shape.packed ? shape.tokens_kv : shape.max_kv);
    a.output_is_f32 = problem_.out_dtype == DType::f32;
    if (uses_maps()) {
      set_maps(a, shape, call);
    } else {
      a.operands[sm80::kQueries] = {call.q, shape.q};
      a.operands[sm80::kKeys] = {call.k, shape.k};
      a.operands[sm80::kValues] = {call.v, shape.v};
      a.causal = is_causal();
    }
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
    a.clear_tail = (shape.packed || shape.kv_lengths != Source::none) && !shape.padding_is_finite;
    return a;
  }

  void set_maps(Arguments& a, const Shape& shape, const Call& call) const {
    const auto map = [&](const void* data, std::int64_t rows, std::int64_t heads,
                         const Layout& layout, int box_rows) {
      // A tensor without rows is never read, but its map wants an address.
      if (data == nullptr || rows == 0) data = call.out;
      return sm90::encode(data, {problem_.dtype, shape.batch, rows, heads, problem_.head_dim},
                          layout, instance_.columns, box_rows);
    };
    maps_.get({{call.q, call.k, call.v, call.out},
               {shape.q, shape.k, shape.v, shape.out},
               shape.batch,
               a.rows_q,
               a.rows_kv},
              {&a.q, &a.k, &a.v, &a.out}, [&] {
                MapCache::Maps maps;
                maps[0] = map(call.q, a.rows_q, problem_.num_heads, shape.q,
                              std::min(instance_.q_box_rows, 1 << division_.box_log2));
                maps[1] = map(call.k, a.rows_kv, problem_.num_kv_heads, shape.k, instance_.keys);
                maps[2] = map(call.v, a.rows_kv, problem_.num_kv_heads, shape.v, instance_.keys);
                maps[3] = a.output_is_f32 ? maps[0]
                                          : map(call.out, a.rows_q, problem_.num_heads, shape.out,
                                                instance_.out_box_rows);
                return maps;
              });
  }

  // Parts of tiles into the workspace, each as if it were a sample of its own, and from there to
  // the output.
  void run_divided(Arguments& a, Stream stream, void* workspace) const {
    auto* const parts = static_cast<float*>(workspace);
    auto* const part_lse = reinterpret_cast<float*>(
        static_cast<std::byte*>(workspace) + part_output_bytes(division_, problem_.head_dim));
    const CombineCall combined{.division = division_,
                               .parts = parts,
                               .part_lse = part_lse,
                               .head_dim = problem_.head_dim,
                               .dtype = out_dtype(),
                               .out = a.output,
                               .out_layout = a.out_layout,
                               .lse = a.lse,
                               .lse_layout = a.lse_layout,
                               .overlaps = target_.overlaps_launches()};
    a.division = division_;
    a.output = parts;
    a.output_is_f32 = 1;
    a.out_layout = {
        .batch = std::int64_t{kTileRows} * problem_.head_dim, .row = problem_.head_dim, .head = 0};
    a.lse = part_lse;
    a.lse_layout = {.batch = kTileRows, .row = 1, .head = 0};
    a.max_q = division_.box_log2 == kTileRowsLog2 ? std::min(a.max_q, kTileRows)
                                                  : division_.heads_of_tile << division_.box_log2;
    const int ctas = ctas_for(division_.all_shares());
    const int rounds = (division_.all_shares() + ctas - 1) / ctas;
    launch(a, ctas, rounds * parts_of_share(), stream);
    combine(combined, stream);
  }

  // All in one launch, whose CTAs put the parts of their tiles together themselves.
  void run_joined(Arguments& a, Stream stream, void* workspace) const {
    const JoinBytes bytes = join_bytes(division_, problem_.head_dim);
    auto* const memory = static_cast<std::byte*>(workspace);
    a.join = {.parts = reinterpret_cast<float*>(memory),
              .logs = reinterpret_cast<float*>(memory + bytes.parts),
              .states = reinterpret_cast<std::uint64_t*>(memory + bytes.parts + bytes.logs),
              .mark = mark_};
    a.division = division_;
    a.tiles = division_.whole;
    const int ctas = division_.whole > 0 ? kernel_.workers.ctas : division_.all_shares();
    launch(a, ctas, (division_.whole + ctas - 1) / ctas + parts_of_share(), stream);
  }

  // At most: a share has parts of two tiles, or of as many as it is long.
  int parts_of_share() const {
    return division_.units.value() / (division_.shares.value() * division_.blocks) + 2;
  }

  // For so many tiles or shares. Hopper's CTAs take several each; of those that share a
  // multiprocessor some are faster, and so the next one begins wherever one is done. (sm80's output
  // of 16 bits relies on a whole tile being its CTA's only one.)
  int ctas_for(int count) const {
    return uses_maps() ? std::min(count, kernel_.workers.ctas) : count;
  }

  // The first so many tiles.
  void launch_tiles(Arguments& a, int tiles, Stream stream) const {
    a.tiles = tiles;
    const int ctas = ctas_for(tiles);
    launch(a, ctas, (tiles + ctas - 1) / ctas, stream);
  }

  // `most`: of their tiles, those that have rows.
  void launch_samples(Arguments& a, int samples, std::int64_t most, Stream stream) const {
    const int heads = samples * problem_.num_heads;
    a.tiles = heads * a.row_tiles;
    if (is_causal()) {
      a.section_heads = std::min(section_heads_, heads);
      a.last_section = (heads - 1) / a.section_heads;
      a.per_section = Divisor(static_cast<std::uint32_t>(a.row_tiles * a.section_heads));
      a.heads_of_section = Divisor(static_cast<std::uint32_t>(a.section_heads));
      a.heads_of_last =
          Divisor(static_cast<std::uint32_t>(heads - a.last_section * a.section_heads));
    }
    if (a.deal.samples != nullptr) {
      launch(a, ctas_for(static_cast<int>(most)), /*rounds=*/1, stream);
    } else {
      launch_tiles(a, a.tiles, stream);
    }
  }

  // `rounds`: tiles or parts of a CTA, at most, where they are not taken one by one.
  void launch(Arguments& a, int ctas, int rounds, Stream stream) const {
    a.redo_shift = 0;
    while (a.deal.samples == nullptr && (rounds - 1) >> a.redo_shift >= kRedoBits) ++a.redo_shift;
    native::launch(function_of(a),
                   {.ctas = ctas,
                    .threads = instance_.threads,
                    .shared_bytes = instance_.shared_bytes,
                    .overlaps = target_.family == Family::sm90},
                   static_cast<native::Arguments*>(&a), stream,
                   "native: launching the forward kernel");
  }

  Problem problem_;
  Target target_;
  Kernel kernel_;
  Instance instance_;
  bool online_;
  DivisionChoice choice_;
  const Division& division_ = choice_.division;
  std::uint64_t mark_ = 0;  // Join's
  std::int32_t row_tiles_ = 0;
  int samples_of_launch_ = 1;     // at most
  int section_heads_ = 1;         // causal
  std::int32_t cached_keys_ = 0;  // Deal's; 0: tiles are always dealt out in rounds
  const Counts counts_;
  mutable RedoWatch watch_;
  mutable MapCache maps_;
};

}  // namespace

std::shared_ptr<const Plan> make_plan(const Problem& problem, const Shape& shape, Device device,
                                      const BackendOptions& options) {
  return std::make_shared<NativePlan>(without_idle_mask(problem, shape), shape, device, options);
}

}  // namespace batten::impl::native
