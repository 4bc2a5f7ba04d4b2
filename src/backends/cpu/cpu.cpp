#include "backends/cpu/cpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "backends/cpu/block.hpp"
#include "core/thread_pool.hpp"

namespace batten::impl {
namespace {

// Below so many multiply-adds (about 20 us of one core) waking a thread costs more than it brings.
constexpr double kSerialWork = 2e6;

// Forms: how bf16 is multiplied. By default the faster one.
constexpr const char* kFp32 = "fp32";
constexpr const char* kBf16Dot = "bf16dot";

// Scratch of all threads together; machines with many get smaller blocks, but not below the fewest
// rows.
constexpr std::size_t kScratchBudget = std::size_t{48} << 20;
constexpr std::int64_t kFewestBlockRows = 192;

// Blocks per thread that let the threads finish at about the same time.
constexpr std::int64_t kBlocksPerThread = 4;

// Bytes from the start of one element to that of another.
std::ptrdiff_t bytes_of(DType dtype, std::int64_t elements) {
  return static_cast<std::ptrdiff_t>(elements) * static_cast<std::ptrdiff_t>(size_of(dtype));
}

const void* advance(const void* p, DType dtype, std::int64_t elements) {
  return static_cast<const std::byte*>(p) + bytes_of(dtype, elements);
}

class CpuPlan : public Plan {
 public:
  CpuPlan(const Problem& problem, const Shape& shape, const BackendOptions& options)
      : problem_(problem),
        kernel_(cpu::best_kernel()),
        num_threads_(affordable_threads(
            problem, options.num_threads > 0 ? options.num_threads : default_num_threads())),
        max_block_rows_(affordable_rows(problem, num_threads_)),
        scratch_size_(cpu::scratch_size(problem.head_dim, problem.head_dim_v, max_block_rows_)) {
    const bool pairs = problem.dtype == DType::bf16 &&
                       (options.form == kBf16Dot ||
                        (options.form.empty() && cpu::bf16_dot() == cpu::DotOfPairs::fast));
    attend_ = pairs ? kernel_.attend_bf16_dot : kernel_.attend;
    const bool lengths = shape.q_lengths != Source::none || shape.kv_lengths != Source::none;
    info_.form = shape.packed ? "packed" : lengths ? "lengths" : "dense";
    info_.kernel = fmt::format("{} {}", kernel_.target, pairs ? kBf16Dot : kFp32);
    info_.tile = fmt::format("{}x{}", kernel_.panel_rows, cpu::kKeyTile);
    info_.workspace_size = static_cast<std::size_t>(num_threads_) * scratch_size_;
  }

  void run(const Shape& shape, const Call& call, void* workspace) const override {
    std::int64_t most_rows = 0;
    double work = 0;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const Sample sample = sample_of(shape, call, b);
      most_rows = std::max(most_rows, sample.q_rows);
      work += static_cast<double>(sample.q_length) * static_cast<double>(sample.kv_length);
    }
    work *= static_cast<double>(problem_.num_heads) * (problem_.head_dim + problem_.head_dim_v);
    const int threads = work < kSerialWork ? 1 : num_threads_;

    const std::int64_t group = problem_.num_heads / problem_.num_kv_heads;
    const std::int64_t rows = most_rows * group;
    const std::int64_t heads = shape.batch * problem_.num_kv_heads;
    if (rows == 0 || heads == 0) return;
    const std::int64_t block_rows = choose_block_rows(rows, heads, threads);
    const std::int64_t blocks = (rows + block_rows - 1) / block_rows;

    parallel_for(heads * blocks, threads, [&](std::int64_t index, int slot) {
      const std::int64_t head = index / blocks;
      const Sample sample = sample_of(shape, call, head / problem_.num_kv_heads);
      // The last rows of a causal sample see the most keys: longest first.
      const std::int64_t first = (blocks - 1 - index % blocks) * block_rows;
      const std::int64_t count = std::min(block_rows, sample.q_rows * group - first);
      if (count <= 0) return;
      cpu::Block block = block_of(shape, call, sample, head % problem_.num_kv_heads);
      block.first_row = first;
      block.num_rows = count;
      attend_(block,
              static_cast<std::byte*>(workspace) + static_cast<std::size_t>(slot) * scratch_size_);
    });
  }

 private:
  // On a machine of hundreds of cores the scratch of all of them would pass the pool's cap.
  static int affordable_threads(const Problem& problem, int threads) {
    constexpr std::size_t kMostScratch = std::size_t{96} << 20;
    const auto fit =
        kMostScratch / cpu::scratch_size(problem.head_dim, problem.head_dim_v, kFewestBlockRows);
    return std::max(1, std::min(threads, static_cast<int>(fit)));
  }

  static std::int64_t affordable_rows(const Problem& problem, int threads) {
    std::int64_t rows = cpu::kMaxBlockRows;
    while (rows > kFewestBlockRows &&
           cpu::scratch_size(problem.head_dim, problem.head_dim_v, rows) *
                   static_cast<std::size_t>(threads) >
               kScratchBudget) {
      rows /= 2;
    }
    return rows;
  }

  // Large blocks share the conversion of keys and values among many rows, small ones keep all
  // threads busy. A row's bits do not depend on its block, so this may follow the number of
  // threads.
  std::int64_t choose_block_rows(std::int64_t rows, std::int64_t heads, int threads) const {
    const std::int64_t panel = kernel_.panel_rows;
    std::int64_t blocks = (rows + max_block_rows_ - 1) / max_block_rows_;
    if (threads > 1 && heads * blocks < kBlocksPerThread * threads) {
      const std::int64_t wanted = (kBlocksPerThread * threads + heads - 1) / heads;
      blocks = std::clamp((rows + panel - 1) / panel, blocks, wanted);
    }
    const std::int64_t lanes = kernel_.lanes;
    return ((rows + blocks - 1) / blocks + lanes - 1) / lanes * lanes;
  }

  cpu::Block block_of(const Shape& shape, const Call& call, const Sample& sample,
                      std::int64_t kv_head) const {
    const std::int64_t group = problem_.num_heads / problem_.num_kv_heads;
    const std::int64_t head = kv_head * group;
    const DType dtype = problem_.dtype;
    cpu::Block block;
    block.dtype = dtype;
    block.out_dtype = problem_.out_dtype;
    block.mask = problem_.mask;
    block.head_dim = problem_.head_dim;
    block.head_dim_v = problem_.head_dim_v;
    block.group = group;
    block.scale = call.scale;
    block.q = advance(call.q, dtype, sample.q_offset + head * shape.q.head);
    block.k = advance(call.k, dtype, sample.k_offset + kv_head * shape.k.head);
    block.v = advance(call.v, dtype, sample.v_offset + kv_head * shape.v.head);
    block.out = static_cast<std::byte*>(call.out) +
                bytes_of(block.out_dtype, sample.out_offset + head * shape.out.head);
    if (call.lse != nullptr) {
      block.lse = call.lse + sample.lse_offset + head * shape.lse_layout.head;
    }
    block.q_row = shape.q.row;
    block.q_head = shape.q.head;
    block.k_row = shape.k.row;
    block.v_row = shape.v.row;
    block.out_row = shape.out.row;
    block.out_head = shape.out.head;
    block.lse_row = shape.lse_layout.row;
    block.lse_head = shape.lse_layout.head;
    block.q_length = sample.q_length;
    block.kv_length = sample.kv_length;
    return block;
  }

  Problem problem_;
  const cpu::Kernel& kernel_;
  int num_threads_;
  std::int64_t max_block_rows_;
  std::size_t scratch_size_;
  void (*attend_)(const cpu::Block& block, void* scratch) = nullptr;
};

class Cpu : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }

  std::vector<std::string> forms() const override { return {kFp32, kBf16Dot}; }

  Availability availability(Device device) const override {
    if (!device.is_cpu()) {
      return {.available = false,
              .reason = "computes on the CPU only",
              .remedy = "use a CPU device",
              .library = {}};
    }
    return cpu::availability();
  }

  std::optional<std::string> why_not(const Problem& problem, Device device) const override {
    if (!device.is_cpu()) return "computes on the CPU only";
    for (const auto& [what, dim] : {std::pair{"head dim", problem.head_dim},
                                    std::pair{"value head dim", problem.head_dim_v}}) {
      if (dim % cpu::kHeadDimStep != 0 || dim > cpu::kMaxHeadDim) {
        return fmt::format(
            "serves head dims that are multiples of {} up to {}, and the {} is {}; "
            "`reference` serves any",
            cpu::kHeadDimStep, cpu::kMaxHeadDim, what, dim);
      }
    }
    return std::nullopt;
  }

  std::optional<std::string> why_not(const Problem& problem, const Shape& shape, Device device,
                                     const BackendOptions& options) const override {
    (void)shape, (void)device;
    if (options.form != kBf16Dot) return std::nullopt;
    if (problem.dtype != DType::bf16) {
      return fmt::format("form {} serves bfloat16, and the dtype is {}", kBf16Dot,
                         name_of(problem.dtype));
    }
    if (cpu::bf16_dot() == cpu::DotOfPairs::missing) {
      return fmt::format("form {} needs a CPU with AVX512_BF16", kBf16Dot);
    }
    return std::nullopt;
  }

  // A plan knows the problem, the target and the threads; all of the shape comes with the call.
  Shape plan_key(const Problem& problem, const Shape& shape,
                 const BackendOptions& options) const override {
    (void)problem, (void)options;
    Shape key;
    key.packed = shape.packed;
    key.q_lengths = shape.q_lengths;
    key.kv_lengths = shape.kv_lengths;
    return key;
  }

  std::shared_ptr<const Plan> plan(const Problem& problem, const Shape& shape, Device device,
                                   const BackendOptions& options) const override {
    (void)device;
    return std::make_shared<CpuPlan>(problem, shape, options);
  }
};

}  // namespace

std::unique_ptr<Backend> make_cpu() { return std::make_unique<Cpu>(); }

}  // namespace batten::impl
