#include "backends/cudnn/plan.hpp"

#include <atomic>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "backends/cudnn/handle.hpp"
#include "backends/cudnn/kernels.hpp"
#include "core/error.hpp"

namespace batten::impl::cudnn {
namespace {

ArraySources sources_of(const Shape& s) {
  return {s.q_lengths == Source::host, s.kv_lengths == Source::host, s.offsets_q == Source::host,
          s.offsets_kv == Source::host};
}

Arrays arrays_of(const Call& c) {
  return {{c.q_lengths, 0}, {c.kv_lengths, 0}, {c.offsets_q, 0}, {c.offsets_kv, 0}};
}

bool any_on_device(const Shape& s) {
  return s.q_lengths == Source::device || s.kv_lengths == Source::device ||
         s.offsets_q == Source::device || s.offsets_kv == Source::device;
}

template <class T>
T* advance(T* data, std::int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
}

// Whether cuDNN leaves rows of a BSHD call in the lengths form to be repaired.
bool has_unseen_rows(const Batch& batch, const Shape& shape, const Arrays& arrays) {
  if (any_on_device(shape)) return true;  // the host cannot know
  for (std::int64_t b = 0; b < batch.size; ++b) {
    if (work_of(batch, arrays, b).queries.count < batch.max_q) return true;
  }
  return false;
}

// Never destroyed: nobody says when a CUDA graph ends that runs kernels of this one.
void keep_forever(std::shared_ptr<const Graph> graph) {
  static std::mutex& mutex = *new std::mutex;
  static auto& graphs = *new std::vector<std::shared_ptr<const Graph>>;
  const std::lock_guard lock(mutex);
  graphs.push_back(std::move(graph));
}

class GraphPlan final : public Plan {
 public:
  GraphPlan(const Problem& problem, const Shape& key, Form form, int device,
            std::shared_ptr<const Graph> graph, std::string library)
      : problem_(problem),
        form_(form),
        device_(device),
        sharing_(form == Form::dense ? sharing_of(problem, key) : Sharing::none),
        graph_(std::move(graph)),
        workspace_(workspace_layout(key.batch, form != Form::dense, form == Form::packed,
                                    static_cast<std::int64_t>(graph_->workspace_size()))) {
    info_.form = name_of(form);
    info_.kernel = graph_->kernel();
    info_.library = std::move(library);
    info_.workspace_size = static_cast<std::size_t>(workspace_.size);
  }

  void run(const Shape& shape, const Call& call, void* workspace) const override {
    const auto scale = static_cast<float>(call.scale);  // above 0: see rules.cpp
    GraphPointers p{
        .q = call.q, .k = call.k, .v = call.v, .out = call.out, .lse = call.lse, .scale = &scale};
    auto* const scratch = static_cast<char*>(workspace);
    void* const handle = thread_handle(device_);
    set_stream(handle, call.stream);
    if (call.capturing && !kept_.exchange(true)) keep_forever(graph_);
    switch (form_) {
      case Form::dense:
        run_dense(shape, call, p, handle, scratch);
        break;
      case Form::packed:
        run_packed(shape, call, p, handle, scratch);
        break;
      case Form::lengths:
        run_lengths(shape, call, p, handle, scratch);
        break;
    }
  }

 private:
  void execute(void* handle, const GraphPointers& p, char* scratch) const {
    graph_->execute(handle, p, scratch == nullptr ? nullptr : scratch + workspace_.library);
  }

  void run_dense(const Shape& shape, const Call& call, GraphPointers p, void* handle,
                 char* scratch) const {
    if (const std::int64_t head = dense_head_rows(problem_.mask, shape); head > 0) {
      repair(batch_of(problem_, shape), {nullptr, 0, head, call.out, call.lse}, call.stream);
      p.q = advance(p.q, head * shape.q.row, problem_.dtype);
      p.out = advance(p.out, head * shape.out.row, problem_.out_dtype);
      if (p.lse != nullptr) p.lse += head * shape.lse_layout.row;
    }
    if (sharing_ != Sharing::repeated) {
      execute(handle, p, scratch);
      return;
    }
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      execute(handle, p, scratch);
      p.q = advance(p.q, shape.q.batch, problem_.dtype);
      p.k = advance(p.k, shape.k.batch, problem_.dtype);
      p.v = advance(p.v, shape.v.batch, problem_.dtype);
      p.out = advance(p.out, shape.out.batch, problem_.out_dtype);
      if (p.lse != nullptr) p.lse += shape.lse_layout.batch;
    }
  }

  void run_packed(const Shape& shape, const Call& call, GraphPointers p, void* handle,
                  char* scratch) const {
    Prepared to = lengths_in(scratch);
    std::int64_t** const offsets[] = {&to.offsets_q, &to.offsets_k, &to.offsets_v, &to.offsets_out,
                                      &to.offsets_lse};
    char* next = scratch + workspace_.offsets;
    for (std::int64_t** array : offsets) {
      *array = reinterpret_cast<std::int64_t*>(next);
      next += workspace_.offsets_stride;
    }
    // cuDNN writes no row outside the samples it is told of: the others can be written now.
    to.out = call.out;
    to.lse = call.lse;
    prepare(batch_of(problem_, shape), arrays_of(call), sources_of(shape), to, call.stream);
    p.lengths_q = to.lengths_q;
    p.lengths_kv = to.lengths_kv;
    p.offsets_q = to.offsets_q;
    p.offsets_k = to.offsets_k;
    p.offsets_v = to.offsets_v;
    p.offsets_out = to.offsets_out;
    p.offsets_lse = to.offsets_lse;
    execute(handle, p, scratch);
  }

  void run_lengths(const Shape& shape, const Call& call, GraphPointers p, void* handle,
                   char* scratch) const {
    const Batch batch = batch_of(problem_, shape);
    const Arrays arrays = arrays_of(call);
    const Prepared to = lengths_in(scratch);
    prepare(batch, arrays, sources_of(shape), to, call.stream);
    p.lengths_q = to.lengths_q;
    p.lengths_kv = to.lengths_kv;
    execute(handle, p, scratch);
    if (has_unseen_rows(batch, shape, arrays)) {
      repair(batch, {to.lengths_q, 0, batch.max_q, call.out, call.lse}, call.stream);
    }
  }

  Prepared lengths_in(char* scratch) const {
    Prepared to;
    to.lengths_q = reinterpret_cast<std::int32_t*>(scratch + workspace_.lengths_q);
    to.lengths_kv = reinterpret_cast<std::int32_t*>(scratch + workspace_.lengths_kv);
    return to;
  }

  Problem problem_;
  Form form_;
  int device_;
  Sharing sharing_;
  std::shared_ptr<const Graph> graph_;
  mutable std::atomic<bool> kept_ = false;
  WorkspaceLayout workspace_;
};

class TrivialPlan final : public Plan {
 public:
  TrivialPlan(const Problem& problem, std::string library) : problem_(problem) {
    info_.kernel = "zeros";
    info_.library = std::move(library);
  }

  void run(const Shape& shape, const Call& call, void*) const override {
    if (shape.batch == 0 || shape.max_q == 0) return;
    const Batch batch = batch_of(problem_, shape);
    if (shape.packed) {
      Prepared to;
      to.out = call.out;
      to.lse = call.lse;
      prepare(batch, arrays_of(call), sources_of(shape), to, call.stream);
    } else {
      repair(batch, {nullptr, 0, batch.max_q, call.out, call.lse}, call.stream);
    }
  }

 private:
  Problem problem_;
};

}  // namespace

std::shared_ptr<const Plan> make_graph_plan(const Problem& problem, const Shape& key, Form form,
                                            int device, std::shared_ptr<const Graph> graph,
                                            std::string library) {
  return std::make_shared<GraphPlan>(problem, key, form, device, std::move(graph),
                                     std::move(library));
}

std::shared_ptr<const Plan> make_trivial_plan(const Problem& problem, std::string library) {
  return std::make_shared<TrivialPlan>(problem, std::move(library));
}

}  // namespace batten::impl::cudnn
