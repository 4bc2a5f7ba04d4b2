#include "wan/cuda/cublaslt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/error.hpp"
#include "wan/cuda/kernels.hpp"

namespace batten::wan::cuda {
namespace {

constexpr int kCandidates = 8;
constexpr int kTimedCalls = 3;

const LibrarySearch& search() {
  static const LibrarySearch it{
      .what = "cuBLASLt",
      .names = {"libcublasLt.so.13"},
      .variable = "BATTEN_CUBLASLT",
      .folders = {"lib64", "lib", "nvidia/cu13/lib", "nvidia/cublas/lib"},
      .remedy =
          "install the CUDA 13 toolkit or the wheel nvidia-cublas, or set BATTEN_CUBLASLT to "
          "the file or its folder"};
  return it;
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : dtype == DType::f16 ? CUDA_R_16F : CUDA_R_32F;
}

}  // namespace

struct CublasLt::Functions {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;

  explicit Functions(const SharedLibrary& library) {
    const auto take = [&library](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(name));
    };
    take(create, "cublasLtCreate");
    take(destroy, "cublasLtDestroy");
    take(version, "cublasLtGetVersion");
    take(matmul, "cublasLtMatmul");
    take(desc_create, "cublasLtMatmulDescCreate");
    take(desc_destroy, "cublasLtMatmulDescDestroy");
    take(desc_set, "cublasLtMatmulDescSetAttribute");
    take(layout_create, "cublasLtMatrixLayoutCreate");
    take(layout_destroy, "cublasLtMatrixLayoutDestroy");
    take(preference_create, "cublasLtMatmulPreferenceCreate");
    take(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    take(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    take(heuristic, "cublasLtMatmulAlgoGetHeuristic");
  }
};

// A kind of product: its description and the kernel that was chosen.
struct CublasLt::Product {
  explicit Product(const Functions& functions) : f(functions) {}
  ~Product() {
    (void)f.desc_destroy(desc);
    for (cublasLtMatrixLayout_t layout : {weight, x, out}) (void)f.layout_destroy(layout);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  const Functions& f;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  Activation left = Activation::none;  // to be done after the product
};

CublasLt::CublasLt(bool tune)
    : library_(search()), f_(std::make_unique<Functions>(library_)), tune_(tune) {
  expect(f_->create(&handle_), "cublasLtCreate");
}

CublasLt::~CublasLt() {
  products_.clear();
  (void)f_->destroy(handle_);
}

std::string CublasLt::text() const {
  const std::size_t v = f_->version();
  return fmt::format("cuBLASLt {}.{}.{} ({})", v / 10000, v / 100 % 100, v % 100, library_.path());
}

void CublasLt::expect(cublasStatus_t status, const char* what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::OutOfMemory : ErrorCode::Device,
       "{}: cuBLASLt reported status {}", what, static_cast<int>(status));
}

void CublasLt::prepare(const LinearCall& call, cudaStream_t stream) {
  (void)product_of(call, stream);
}

// Row-major out = x W' is column-major out' = W x': the library sees W' transposed.
CublasLt::Product& CublasLt::product_of(const LinearCall& call, cudaStream_t stream) {
  const Key key{call.rows, call.n_in, call.n_out, static_cast<int>(call.dtype),
                static_cast<int>(call.activation)};
  if (const auto it = products_.find(key); it != products_.end()) return *it->second;
  auto product = std::make_unique<Product>(*f_);
  const cudaDataType_t type = type_of(call.dtype);
  expect(f_->desc_create(&product->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
         "a product's description");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  expect(f_->desc_set(product->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
         "a product's description");
  const auto in = static_cast<std::uint64_t>(call.n_in);
  const auto out = static_cast<std::uint64_t>(call.n_out);
  const auto rows = static_cast<std::uint64_t>(call.rows);
  expect(f_->layout_create(&product->weight, type, in, out, call.n_in), "a matrix's layout");
  expect(f_->layout_create(&product->x, type, in, rows, call.n_in), "a matrix's layout");
  expect(f_->layout_create(&product->out, type, out, rows, call.n_out), "a matrix's layout");

  // The library's GELU is the one by tanh.
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  if (call.activation == Activation::gelu_tanh) {
    epilogue = CUBLASLT_EPILOGUE_GELU_BIAS;
  } else {
    product->left = call.activation;
  }
  const auto set_epilogue = [&] {
    expect(f_->desc_set(product->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)),
           "a product's epilogue");
    expect(f_->desc_set(product->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call.bias,
                        sizeof(call.bias)),
           "a product's bias");
  };
  set_epilogue();
  if (!choose(*product, call, stream)) {
    epilogue = CUBLASLT_EPILOGUE_BIAS;
    product->left = call.activation;
    set_epilogue();
    if (!choose(*product, call, stream)) {
      fail(ErrorCode::Unsupported, "{} has no kernel for a product of {} x {} by {} in {}", text(),
           call.rows, call.n_in, call.n_out, name_of(call.dtype));
    }
  }
  return *products_.emplace(key, std::move(product)).first->second;
}

bool CublasLt::choose(Product& product, const LinearCall& call, cudaStream_t stream) {
  cublasLtMatmulPreference_t preference = nullptr;
  expect(f_->preference_create(&preference), "a preference");
  const std::size_t workspace = kWorkspaceBytes;
  (void)f_->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                           sizeof(workspace));
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
  int count = 0;
  const cublasStatus_t status =
      f_->heuristic(handle_, product.desc, product.weight, product.x, product.out, product.out,
                    preference, tune_ ? kCandidates : 1, found.data(), &count);
  (void)f_->preference_destroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) return false;
  product.algorithm = found[0].algo;
  if (tune_)
    fastest(product, call, stream, std::span(found).first(static_cast<std::size_t>(count)));
  return true;
}

void CublasLt::fastest(Product& product, const LinearCall& call, cudaStream_t stream,
                       std::span<cublasLtMatmulHeuristicResult_t> candidates) {
  std::array<cudaEvent_t, 2> events{};
  for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "cudaEventCreate");
  float best = std::numeric_limits<float>::max();
  for (const cublasLtMatmulHeuristicResult_t& candidate : candidates) {
    if (launch(product, candidate.algo, call, stream) != CUBLAS_STATUS_SUCCESS) continue;
    check(cudaEventRecord(events[0], stream), "cudaEventRecord");
    for (int i = 0; i < kTimedCalls; ++i) (void)launch(product, candidate.algo, call, stream);
    check(cudaEventRecord(events[1], stream), "cudaEventRecord");
    check(cudaEventSynchronize(events[1]), "waiting for a product");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events[0], events[1]), "cudaEventElapsedTime");
    if (ms >= best) continue;
    best = ms;
    product.algorithm = candidate.algo;
  }
  for (const cudaEvent_t event : events) (void)cudaEventDestroy(event);
}

cublasStatus_t CublasLt::launch(const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                                const LinearCall& call, cudaStream_t stream) {
  const float one = 1;
  const float zero = 0;
  return f_->matmul(handle_, product.desc, &one, call.weight, product.weight, call.x, product.x,
                    &zero, call.out, product.out, call.out, product.out, &algorithm, workspace_,
                    kWorkspaceBytes, stream);
}

Activation CublasLt::run(const LinearCall& call, cudaStream_t stream) {
  const Product& product = product_of(call, stream);
  expect(
      f_->desc_set(product.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &call.bias, sizeof(call.bias)),
      "a product's bias");
  expect(launch(product, product.algorithm, call, stream), "a product");
  return product.left;
}

}  // namespace batten::wan::cuda
