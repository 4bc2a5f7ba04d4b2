#include "backends/reference/reference.hpp"

#include <algorithm>
#include <string>

#include "backends/reference/rows.hpp"
#include "core/thread_pool.hpp"

namespace batten::impl {
namespace {

class ReferencePlan : public Plan {
 public:
  ReferencePlan(const Problem& problem, const Shape& shape, const BackendOptions& options)
      : problem_(problem),
        num_threads_(options.num_threads > 0 ? options.num_threads : default_num_threads()),
        row_(options.form == "online" ? row_function_online(problem)
                                      : row_function_two_pass(problem)) {
    const bool lengths = shape.q_lengths != Source::none || shape.kv_lengths != Source::none;
    info_.form = shape.packed ? "packed" : lengths ? "lengths" : "dense";
    info_.kernel = options.form == "online" ? "float64 online" : "float64 two-pass";
    info_.tile = "1x1";
  }

  void run(const Shape& shape, const Call& call, void* /*workspace*/) const override {
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const Sample sample = sample_of(shape, call, b);
      parallel_for(sample.q_rows * problem_.num_heads, num_threads_,
                   [&](std::int64_t index, int /*slot*/) {
                     const std::int64_t i = index / problem_.num_heads;
                     const std::int64_t h = index % problem_.num_heads;
                     row_(row_call(shape, call, sample, i, h));
                   });
    }
  }

 private:
  RowCall row_call(const Shape& shape, const Call& call, const Sample& sample, std::int64_t i,
                   std::int64_t h) const {
    const std::int64_t kv_head = h / (problem_.num_heads / problem_.num_kv_heads);
    RowCall row;
    row.head_dim = problem_.head_dim;
    row.head_dim_v = problem_.head_dim_v;
    row.mask = problem_.mask;
    row.scale = call.scale;
    row.i = i;
    row.q_length = sample.q_length;
    row.kv_length = sample.kv_length;
    row.q = call.q;
    row.k = call.k;
    row.v = call.v;
    row.out = call.out;
    row.q_first = sample.q_offset + i * shape.q.row + h * shape.q.head;
    row.k_first = sample.k_offset + kv_head * shape.k.head;
    row.v_first = sample.v_offset + kv_head * shape.v.head;
    row.out_first = sample.out_offset + i * shape.out.row + h * shape.out.head;
    row.k_stride = shape.k.row;
    row.v_stride = shape.v.row;
    if (call.lse != nullptr) {
      row.lse = call.lse + sample.lse_offset + i * shape.lse_layout.row + h * shape.lse_layout.head;
    }
    return row;
  }

  Problem problem_;
  int num_threads_;
  RowFunction row_;
};

class Reference : public Backend {
 public:
  std::string_view name() const override { return "reference"; }

  std::vector<std::string> forms() const override { return {"online"}; }

  Availability availability(Device device) const override {
    if (device.is_cpu()) return {.available = true, .reason = {}, .remedy = {}, .library = {}};
#if BATTEN_WITH_CUDA
    return reference_cuda_availability(device);
#else
    return {.available = false,
            .reason = "built without CUDA",
            .remedy = "build with the CUDA toolkit, or use a CPU device",
            .library = {}};
#endif
  }

  std::optional<std::string> why_not(const Problem& /*problem*/, Device /*device*/) const override {
    return std::nullopt;
  }
  using Backend::why_not;

  // A plan knows the problem, the form and the threads; all of the shape comes with the call.
  Shape plan_key(const Problem& problem, const Shape& shape,
                 const BackendOptions& options) const override {
    (void)problem, (void)options;
    Shape key;
    key.packed = shape.packed;
    key.q_lengths = shape.q_lengths;
    key.kv_lengths = shape.kv_lengths;
    return key;
  }

  std::optional<std::string> why_not_on(const cost::Card&, const Problem&, const Shape&,
                                        const BackendOptions&) const override {
    return std::nullopt;
  }

  std::shared_ptr<const Plan> plan(const Problem& problem, const Shape& shape, Device device,
                                   const BackendOptions& options) const override {
#if BATTEN_WITH_CUDA
    if (!device.is_cpu()) return make_reference_cuda_plan(problem, shape, device, options);
#else
    (void)device;
#endif
    return std::make_shared<ReferencePlan>(problem, shape, options);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference() { return std::make_unique<Reference>(); }

}  // namespace batten::impl
