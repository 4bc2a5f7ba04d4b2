// Products by cuBLASLt, loaded at run time.
#pragma once

#include <cublasLt.h>

#include <map>
#include <string>
#include <tuple>

#include "wan/ops.hpp"
#include "wan/shared_library.hpp"

namespace batten::wan::cuda {

class CublasLt {
 public:
  // With `tune` the kernel of each product is measured, not predicted. Throws Unavailable.
  explicit CublasLt(bool tune);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  std::string text() const;  // "cuBLASLt 13.1.0 (/usr/lib/...)"

  // Scratch that run() uses, `bytes` long; on the device.
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
  void set_workspace(void* workspace) noexcept { workspace_ = workspace; }

  // Chooses the kernel for products like this one, if none is yet. When tuning, the call is run.
  void prepare(const LinearCall& call, cudaStream_t stream);

  // Queues the product. Returns the activation that is left to do: the library has none, or not for
  // this product.
  Activation run(const LinearCall& call, cudaStream_t stream);

 private:
  struct Functions;
  struct Product;
  // Rows, widths, dtype, activation.
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, int, int>;

  Product& product_of(const LinearCall& call, cudaStream_t stream);
  bool choose(Product& product, const LinearCall& call, cudaStream_t stream);
  void fastest(Product& product, const LinearCall& call, cudaStream_t stream,
               std::span<cublasLtMatmulHeuristicResult_t> candidates);
  cublasStatus_t launch(const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                        const LinearCall& call, cudaStream_t stream);
  void expect(cublasStatus_t status, const char* what) const;

  SharedLibrary library_;
  std::unique_ptr<Functions> f_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  bool tune_;
  std::map<Key, std::unique_ptr<Product>> products_;
};

}  // namespace batten::wan::cuda
