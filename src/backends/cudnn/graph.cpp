#include "backends/cudnn/graph.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>
#include <utility>

#include "backends/cudnn/frontend.hpp"
#include "backends/cudnn/message.hpp"
#include "core/cuda_runtime.hpp"
#include "core/error.hpp"

namespace batten::impl::cudnn {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

// cuDNN's names for the graph's tensors. Pointers are handed over in this order.
enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kScale,
  kLengthsQ,
  kLengthsKv,
  kOffsetsQ,
  kOffsetsK,
  kOffsetsV,
  kOffsetsOut,
  kOffsetsLse,
};
constexpr std::size_t kMostTensors = kOffsetsLse;

// The tensors that a graph of this key has, with their pointers, by rising uid.
struct Variant {
  std::array<std::int64_t, kMostTensors> uids{};
  std::array<void*, kMostTensors> pointers{};
  std::size_t count = 0;

  Variant(const GraphKey& key, const GraphPointers& p) {
    const bool lengths = key.form != Form::dense;
    const bool offsets = key.form == Form::packed;
    add(true, kQ, p.q);
    add(true, kK, p.k);
    add(true, kV, p.v);
    add(true, kOut, p.out);
    add(key.lse, kLse, p.lse);
    add(true, kScale, p.scale);
    add(lengths, kLengthsQ, p.lengths_q);
    add(lengths, kLengthsKv, p.lengths_kv);
    add(offsets, kOffsetsQ, p.offsets_q);
    add(offsets, kOffsetsK, p.offsets_k);
    add(offsets, kOffsetsV, p.offsets_v);
    add(offsets, kOffsetsOut, p.offsets_out);
    add(offsets && key.lse, kOffsetsLse, p.offsets_lse);
  }

 private:
  void add(bool present, std::int64_t uid, const void* pointer) {
    if (!present) return;
    uids[count] = uid;
    pointers[count++] = const_cast<void*>(pointer);  // cuDNN has one type for inputs and outputs
  }
};

[[noreturn]] void raise(const char* doing, fe::error_code_t code, const std::string& message) {
  ErrorCode kind = ErrorCode::Internal;
  switch (code) {
    case fe::error_code_t::GRAPH_NOT_SUPPORTED:
    case fe::error_code_t::HEURISTIC_QUERY_FAILED:
    case fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED:
    case fe::error_code_t::UNSUPPORTED_GRAPH_FORMAT:
      kind = ErrorCode::Unsupported;
      break;
    case fe::error_code_t::CUDA_API_FAILED:
    case fe::error_code_t::CUDNN_BACKEND_API_FAILED:
    case fe::error_code_t::GRAPH_EXECUTION_FAILED:
    case fe::error_code_t::HANDLE_ERROR:
      kind = ErrorCode::Device;
      break;
    default:
      break;
  }
  fail(kind, "cuDNN {}: {}: {}", version_text(fe::detail::get_backend_version()), doing,
       one_line(message));
}

void check(fe::error_t status, const char* doing) {
  if (status.is_bad()) raise(doing, status.get_code(), status.get_message());
}

// Runs `body`; what the frontend throws becomes a batten::Error too.
template <class Body>
auto guarded(const char* doing, ErrorCode kind, Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    fail(kind, "cuDNN: {}: {}", doing, one_line(e.what()));
  }
}

fe::DataType_t data_type(DType dtype) {
  return dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
}

std::vector<std::int64_t> strides_of(const Layout& layout) {
  return {layout.batch, layout.head, layout.row, 1};
}

class SdpaGraph final : public Graph {
 public:
  explicit SdpaGraph(const GraphKey& key) : key_(key) {}

  void build(void* raw_handle, int arch) {
    auto* const handle = static_cast<cudnnHandle_t>(raw_handle);
    describe(arch);
    check(graph_.validate(), "checking the attention graph");
    check(graph_.build_operation_graph(handle), "building the attention graph");
    check(graph_.create_execution_plans({fe::HeurMode_t::A}), "choosing an engine");
    check(graph_.check_support(), "choosing an engine");
    check(graph_.build_plans(), "compiling the attention kernel");
    if (graph_.serialize(serialized_).is_bad()) serialized_.clear();
    finish(handle);
  }

  void restore(void* raw_handle, std::span<const std::uint8_t> bytes) {
    auto* const handle = static_cast<cudnnHandle_t>(raw_handle);
    serialized_.assign(bytes.begin(), bytes.end());
    deserialize(handle);
    finish(handle);
  }

  void execute(void* handle, const GraphPointers& pointers, void* workspace) const override {
    guarded("running attention", ErrorCode::Device, [&] {
      Variant variant(key_, pointers);
      fe::error_t status =
          graph_.execute(static_cast<cudnnHandle_t>(handle), variant.pointers.data(),
                         static_cast<int>(variant.count), workspace);
      if (status.is_good()) return;
      fail(ErrorCode::Device, "cuDNN {}: running attention: {}",
           version_text(fe::detail::get_backend_version()), one_line(status.get_message()));
    });
  }

  std::size_t workspace_size() const override { return workspace_size_; }
  const std::string& kernel() const override { return kernel_; }
  std::vector<std::uint8_t> serialize() const override { return serialized_; }

 private:
  Tensor tensor(Uid uid, const char* name, std::vector<std::int64_t> dims, const Layout& layout,
                const Tensor& offsets) {
    auto attributes = Tensor_attributes()
                          .set_uid(uid)
                          .set_name(name)
                          .set_data_type(data_type(key_.dtype))
                          .set_dim(std::move(dims))
                          .set_stride(strides_of(layout));
    if (offsets) attributes.set_ragged_offset(offsets);
    return graph_.tensor(attributes);
  }

  Tensor per_sample(Uid uid, const char* name, fe::DataType_t type, std::int64_t count) {
    return graph_.tensor(Tensor_attributes()
                             .set_uid(uid)
                             .set_name(name)
                             .set_data_type(type)
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1}));
  }

  Tensor offsets(Uid uid, const char* name) {
    if (key_.form != Form::packed) return nullptr;
    // 64 bits: T * H * D passes 2^31 long before the tokens do.
    return per_sample(uid, name, fe::DataType_t::INT64, key_.batch + 1);
  }

  void describe(int arch) {
    const std::int64_t b = key_.batch;
    graph_.set_io_data_type(data_type(key_.dtype))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(arch);
    const Tensor q = tensor(kQ, "q", {b, key_.num_heads, key_.rows_q, key_.head_dim}, key_.q,
                            offsets(kOffsetsQ, "offsets_q"));
    const Tensor k = tensor(kK, "k", {b, key_.num_k_heads, key_.rows_kv, key_.head_dim}, key_.k,
                            offsets(kOffsetsK, "offsets_k"));
    const Tensor v = tensor(kV, "v", {b, key_.num_v_heads, key_.rows_kv, key_.head_dim_v}, key_.v,
                            offsets(kOffsetsV, "offsets_v"));
    // A value of the call, not of the plan.
    const Tensor scale = graph_.tensor(Tensor_attributes()
                                           .set_uid(kScale)
                                           .set_name("scale")
                                           .set_data_type(fe::DataType_t::FLOAT)
                                           .set_dim({1, 1, 1, 1})
                                           .set_stride({1, 1, 1, 1})
                                           .set_is_pass_by_value(true));

    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention")
                          .set_generate_stats(key_.lse)
                          .set_attn_scale(scale);
    if (key_.diagonal != Diagonal::none) {
      attributes
          .set_diagonal_alignment(key_.diagonal == Diagonal::top_left
                                      ? fe::DiagonalAlignment_t::TOP_LEFT
                                      : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
          .set_diagonal_band_right_bound(0);
    }
    if (key_.form != Form::dense) {
      attributes.set_padding_mask(true)
          .set_seq_len_q(per_sample(kLengthsQ, "lengths_q", fe::DataType_t::INT32, b))
          .set_seq_len_kv(per_sample(kLengthsKv, "lengths_kv", fe::DataType_t::INT32, b));
    }
    const auto [out, lse] = graph_.sdpa(q, k, v, attributes);
    out->set_output(true)
        .set_uid(kOut)
        .set_data_type(data_type(key_.dtype))
        .set_dim({b, key_.num_heads, key_.rows_q, key_.head_dim_v})
        .set_stride(strides_of(key_.out));
    if (const Tensor o = offsets(kOffsetsOut, "offsets_out")) out->set_ragged_offset(o);
    if (!key_.lse) return;
    lse->set_output(true)
        .set_uid(kLse)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_alignment(sizeof(float))  // the caller's lse may begin anywhere
        .set_dim({b, key_.num_heads, key_.rows_q, 1})
        .set_stride(strides_of(key_.lse_layout));
    if (const Tensor o = offsets(kOffsetsLse, "offsets_lse")) lse->set_ragged_offset(o);
  }

  // The frontend ends by running the plan on memory of its own making, which crashed
  // the process (frontend 1.23.0, cuDNN 9.14 and 9.19). In a capture it leaves that out; load()
  // does it right.
  void deserialize(cudnnHandle_t handle) {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_of(handle), cudaStreamCaptureModeRelaxed),
               "cudnn: restoring a plan");
    fe::error_t status;
    try {
      status = graph_.deserialize(handle, serialized_);
    } catch (const std::exception& e) {
      status = {fe::error_code_t::INVALID_VALUE, e.what()};
    }
    const cudaError_t error = cudaStreamEndCapture(stream_of(handle), &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    check(status, "restoring a plan");
    check_cuda(error, "cudnn: restoring a plan");
  }

  static cudaStream_t stream_of(cudnnHandle_t handle) {
    cudaStream_t stream = nullptr;
    if (cudnnGetStream(handle, &stream) != CUDNN_STATUS_SUCCESS || stream == nullptr) {
      fail(ErrorCode::Internal, "cuDNN: the handle has no stream to load kernels on");
    }
    return stream;
  }

  // What the plan says of itself, and whether it takes our tensors and nothing else; then its
  // kernels.
  void finish(cudnnHandle_t handle) {
    const Variant variant(key_, {});
    const std::vector<std::int64_t> uids = graph_.get_variant_pack_uids_sorted();
    if (!std::equal(uids.begin(), uids.end(), variant.uids.begin(),
                    variant.uids.begin() + static_cast<std::ptrdiff_t>(variant.count))) {
      fail(ErrorCode::Internal, "cuDNN: the plan asks for {} tensors, the graph has {}",
           uids.size(), variant.count);
    }
    std::int64_t bytes = 0;
    check(graph_.get_workspace_size(bytes), "asking for the workspace size");
    workspace_size_ = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0));
    std::string plan_name;
    if (graph_.get_plan_name(plan_name).is_bad()) plan_name = "sdpa";
    kernel_ = kernel_name({reinterpret_cast<const char*>(serialized_.data()), serialized_.size()},
                          plan_name);
    load(handle);
  }

  // Runs the plan once in a capture that is thrown away: cuDNN then loads its kernels, which it may
  // not do while a caller captures, and prepares what execute() would otherwise prepare lazily.
  void load(cudnnHandle_t handle) {
    cudaStream_t const stream = stream_of(handle);
    // Nothing runs, so one piece of memory does for every tensor.
    constexpr std::size_t kTensorBytes = 1 << 16;
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, kTensorBytes + workspace_size_), "cudnn: memory for loading");
    void* const workspace = static_cast<char*>(memory) + kTensorBytes;
    const float scale = 1;
    auto* const lengths = static_cast<std::int32_t*>(memory);
    auto* const offsets = static_cast<std::int64_t*>(memory);
    const GraphPointers pointers{memory,  memory,  memory,  memory,  static_cast<float*>(memory),
                                 &scale,  lengths, lengths, offsets, offsets,
                                 offsets, offsets, offsets};
    fe::error_t status;
    cudaGraph_t graph = nullptr;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (error == cudaSuccess) {
      Variant variant(key_, pointers);
      try {
        status = graph_.execute(handle, variant.pointers.data(), static_cast<int>(variant.count),
                                workspace);
      } catch (const std::exception& e) {
        status = {fe::error_code_t::GRAPH_EXECUTION_FAILED, e.what()};
      }
      error = cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
    }
    (void)cudaFree(memory);
    check(status, "loading the attention kernel");
    check_cuda(error, "cudnn: loading the attention kernel");
  }

  GraphKey key_;
  fe::graph::Graph graph_;
  std::size_t workspace_size_ = 0;
  std::string kernel_;
  std::vector<std::uint8_t> serialized_;
};

}  // namespace

std::unique_ptr<Graph> build_graph(const GraphKey& key, void* handle, int arch) {
  return guarded("building an attention plan", ErrorCode::Unsupported, [&] {
    auto graph = std::make_unique<SdpaGraph>(key);
    graph->build(handle, arch);
    return graph;
  });
}

std::unique_ptr<Graph> restore_graph(const GraphKey& key, void* handle,
                                     std::span<const std::uint8_t> bytes) {
  return guarded("restoring an attention plan", ErrorCode::Internal, [&] {
    auto graph = std::make_unique<SdpaGraph>(key);
    graph->restore(handle, bytes);
    return graph;
  });
}

const char* frontend_version() noexcept {
  static const std::string version =
      version_text(CUDNN_FRONTEND_MAJOR_VERSION * 10000 + CUDNN_FRONTEND_MINOR_VERSION * 100 +
                   CUDNN_FRONTEND_PATCH_VERSION);
  return version.c_str();
}

std::size_t compiled_version() noexcept { return CUDNN_VERSION; }

}  // namespace batten::impl::cudnn
