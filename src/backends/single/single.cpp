#include "backends/single/single.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "backends/single/cost.hpp"
#include "backends/single/finish.hpp"
#include "backends/single/items.hpp"
#include "backends/single/kernels.hpp"
#include "backends/single/path.hpp"
#include "core/error.hpp"

#if !defined(BATTEN_FLASHINFER_VERSION)
#define BATTEN_FLASHINFER_VERSION "of an unknown version"
#endif

namespace batten::impl {
namespace {

using namespace single;

constexpr const char* kVersion = BATTEN_FLASHINFER_VERSION;
constexpr std::size_t kElement = 2;  // bytes of fp16 and bf16

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Where the scratch lies in the workspace; a part that is not needed has no bytes.
struct Scratch {
  std::size_t split = 0;
  std::size_t lse = 0;
  std::size_t out = 0;
  std::size_t total() const { return aligned(split) + aligned(lse) + aligned(out); }
};

std::string library() { return fmt::format("FlashInfer {} headers", kVersion); }

class SinglePlan : public Plan {
 public:
  SinglePlan(const Problem& problem, const Shape& shape, Device device)
      : problem_(problem),
        path_(path_of(problem, shape, device_runtime().properties(device.index).arch())),
        kernels_(find_kernels(path_, problem.dtype, problem.head_dim)),
        scratch_rows_(shape.packed ? shape.tokens_q : shape.batch * shape.max_q) {
    if (kernels_.full.kernel == nullptr) {
      fail(ErrorCode::Internal, "single: no kernel for head_dim {}", problem.head_dim);
    }
    for (const Instance& kernel : {kernels_.full, kernels_.causal}) {
      if (kernel.prepare != nullptr) kernel.prepare();
    }
    const auto rows = static_cast<std::size_t>(scratch_rows_);
    const auto heads = static_cast<std::size_t>(problem.num_heads);
    if (path_ == Path::sm80) {
      scratch_.split = kSplitScratch;
      if (!output_is_contiguous(problem, shape)) {
        scratch_.out = rows * heads * static_cast<std::size_t>(problem.head_dim) * kElement;
      }
    }
    if (shape.lse && !lse_is_contiguous(problem, shape))
      scratch_.lse = rows * heads * sizeof(float);

    const Instance& kernel = problem.mask == Mask::none ? kernels_.full : kernels_.causal;
    const bool lengths = shape.q_lengths != Source::none || shape.kv_lengths != Source::none;
    info_.form = shape.packed ? "packed" : lengths ? "lengths" : "dense";
    info_.kernel = kernel.kernel;
    info_.tile = kernel.tile;
    info_.library = library();
    info_.workspace_size = scratch_.total();
  }

  void run(const Shape& shape, const Call& call, void* workspace) const override {
    auto* memory = static_cast<std::byte*>(workspace);
    void* split = scratch_.split == 0 ? nullptr : memory;
    auto* scratch_lse =
        scratch_.lse == 0 ? nullptr : reinterpret_cast<float*>(memory + aligned(scratch_.split));
    auto* scratch_out = scratch_.out == 0
                            ? nullptr
                            : reinterpret_cast<std::uint16_t*>(memory + aligned(scratch_.split) +
                                                               aligned(scratch_.lse));

    Launch launch = launch_of(shape, call);
    launch.scratch = split;
    Finish finish;
    finish.out = call.out;
    finish.lse = call.lse;
    finish.scratch_out = scratch_out;
    finish.scratch_lse = scratch_lse;
    finish.out_layout = shape.out;
    finish.lse_layout = shape.lse_layout;
    finish.num_heads = problem_.num_heads;
    finish.head_dim = problem_.head_dim;

    std::int64_t scratch_row = 0;  // samples lie in the scratch one after another
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const Sample sample = sample_of(shape, call, b);
      if (scratch_row + sample.q_rows > scratch_rows_) {
        fail(ErrorCode::Internal, "single: the samples have more rows than the call's {}",
             scratch_rows_);
      }
      for (const Item& item :
           plan_items(problem_.mask, sample.q_length, sample.kv_length, sample.q_rows)) {
        const Segment segment{
            .out = sample.out_offset + item.first_row * shape.out.row,
            .lse = sample.lse_offset + item.first_row * shape.lse_layout.row,
            .scratch = scratch_row + item.first_row,
            .rows = item.rows,
            .clear = item.keys == 0,
        };
        if (!segment.clear) {
          const std::int64_t row_elements =
              static_cast<std::int64_t>(problem_.num_heads) * problem_.head_dim;
          launch.q = element(call.q, sample.q_offset + item.first_row * shape.q.row);
          launch.k = element(call.k, sample.k_offset);
          launch.v = element(call.v, sample.v_offset);
          launch.out = scratch_out != nullptr ? scratch_out + segment.scratch * row_elements
                                              : static_cast<std::uint16_t*>(call.out) + segment.out;
          if (call.lse != nullptr) {
            launch.lse = scratch_lse != nullptr ? scratch_lse + segment.scratch * problem_.num_heads
                                                : call.lse + segment.lse;
          }
          launch.rows = static_cast<std::int32_t>(item.rows);
          launch.keys = static_cast<std::int32_t>(item.keys);
          (item.causal ? kernels_.causal : kernels_.full).launch(launch, call.stream);
        }
        if (segment.clear || call.lse != nullptr || scratch_out != nullptr) {
          finish.segments[finish.count++] = segment;
          if (finish.count == Finish::kMost) flush(finish, call.stream);
        }
      }
      scratch_row += sample.q_rows;
    }
    flush(finish, call.stream);
  }

 private:
  static const void* element(const void* data, std::int64_t index) {
    return static_cast<const std::uint16_t*>(data) + index;
  }

  static void flush(Finish& finish, Stream stream) {
    run_finish(finish, stream);
    finish.count = 0;
  }

  // What all samples of a call have in common.
  Launch launch_of(const Shape& shape, const Call& call) const {
    Launch launch;
    launch.num_heads = problem_.num_heads;
    launch.num_kv_heads = problem_.num_kv_heads;
    // The kernels flush denormals, and a factor of 0 turns masked scores of -inf into NaN. At
    // either value all scores are 0 to any precision that a weight has.
    launch.scale = std::max(static_cast<float>(call.scale), std::numeric_limits<float>::min());
    // Keys and values that all heads share are those of one head. A dimension of one has no stride,
    // whatever the caller says; a tensor map wants a decent number there all the same.
    if (shape.k.head == 0 && shape.v.head == 0) launch.num_kv_heads = 1;
    const auto stride = [&](std::int64_t count, std::int64_t stride) {
      return count > 1 ? stride : static_cast<std::int64_t>(problem_.head_dim);
    };
    launch.q_row = stride(shape.max_q, shape.q.row);
    launch.q_head = stride(launch.num_heads, shape.q.head);
    launch.k_row = stride(shape.max_kv, shape.k.row);
    launch.k_head = stride(launch.num_kv_heads, shape.k.head);
    launch.v_row = stride(shape.max_kv, shape.v.row);
    launch.v_head = stride(launch.num_kv_heads, shape.v.head);
    launch.out_row = shape.out.row;
    launch.out_head = shape.out.head;
    return launch;
  }

  Problem problem_;
  Path path_;
  Kernels kernels_;
  std::int64_t scratch_rows_;
  Scratch scratch_;
};

class Single : public Backend {
 public:
  std::string_view name() const override { return "single"; }

  Availability availability(Device device) const override {
    if (auto absent = without_gpu(device, "FlashInfer's kernels")) return *absent;
    const DeviceProperties& properties = device_runtime().properties(device.index);
    if (properties.arch() < 80) {
      return {.available = false,
              .reason = fmt::format("{} is sm{}; FlashInfer's prefill kernels need sm80 or newer",
                                    properties.name, properties.arch()),
              .remedy = "use the reference backend on this device",
              .library = {}};
    }
    return {.available = true, .reason = {}, .remedy = {}, .library = library()};
  }

  std::optional<std::string> why_not(const Problem& problem, Device /*device*/) const override {
    if (problem.dtype != DType::f16 && problem.dtype != DType::bf16) {
      return fmt::format("flashinfer {}'s prefill kernels take float16 and bfloat16, not {}",
                         kVersion, name_of(problem.dtype));
    }
    if (problem.out_dtype != problem.dtype) {
      return fmt::format("its kernels write outputs of the inputs' type, not {}",
                         name_of(problem.out_dtype));
    }
    if (problem.head_dim != problem.head_dim_v) {
      return fmt::format("it is built for equal head dims, not {} and {}", problem.head_dim,
                         problem.head_dim_v);
    }
    if (find_kernels(Path::sm80, problem.dtype, problem.head_dim).full.kernel == nullptr) {
      if (problem.head_dim == 64 || problem.head_dim == 256) {
        return fmt::format(
            "this build has head_dim 128 only, not {}; rebuild with BATTEN_SINGLE=all",
            problem.head_dim);
      }
      return fmt::format("flashinfer {} has kernels for head_dim 64, 128 and 256, not {}", kVersion,
                         problem.head_dim);
    }
    return std::nullopt;
  }

  std::optional<std::string> why_not(const Problem& problem, const Shape& shape, Device device,
                                     const BackendOptions& /*options*/) const override {
    if (!shape.scale_is_positive)
      return fmt::format("flashinfer {} takes a scale above 0", kVersion);
    for (const auto& [source, what] :
         {std::pair{shape.q_lengths, "q_lengths"}, std::pair{shape.kv_lengths, "kv_lengths"},
          std::pair{shape.offsets_q, "offsets_q"}, std::pair{shape.offsets_kv, "offsets_kv"}}) {
      if (source == Source::device) {
        return fmt::format("{} lie on the device, but one call per sample needs them on the host",
                           what);
      }
    }
    const int arch = device_runtime().properties(device.index).arch();
    return why_not_path(path_of(problem, shape, arch), problem, shape, kVersion);
  }

  // A plan fixes the kernels and the scratch: keys do not matter, and queries only by their number.
  Shape plan_key(const Problem& problem, const Shape& shape,
                 const BackendOptions& /*options*/) const override {
    (void)problem;
    Shape key = shape;
    key.tokens_kv = 0;
    key.max_kv = std::min<std::int64_t>(shape.max_kv, 2);  // whether keys have a stride at all
    key.padding_is_finite = false;                         // the kernels never read padding
    // A few plans, not one for each number of tokens.
    constexpr std::int64_t kStep = 4096;
    if (shape.packed) key.tokens_q = (shape.tokens_q + kStep - 1) / kStep * kStep;
    return key;
  }

  std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& problem,
                                          const Shape& shape,
                                          const BackendOptions& options) const override {
    return single::predict(card, problem, shape, options);
  }

  std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                        const Shape& shape,
                                        const BackendOptions& options) const override {
    return single::why_not_on(card, problem, shape, options);
  }

  std::shared_ptr<const Plan> plan(const Problem& problem, const Shape& shape, Device device,
                                   const BackendOptions& /*options*/) const override {
    return std::make_shared<SinglePlan>(problem, shape, device);
  }
};

}  // namespace

std::unique_ptr<Backend> make_single() { return std::make_unique<Single>(); }

}  // namespace batten::impl
