// The one place that names every backend. Of two that would take equally long `auto` prefers the
// first.
#include "backends/absent.hpp"
#include "backends/cpu/cpu.hpp"
#include "backends/cudnn/cost.hpp"
#include "backends/cudnn/rules.hpp"
#include "backends/native/cost.hpp"
#include "backends/native/rules.hpp"
#include "backends/reference/reference.hpp"
#include "backends/single/cost.hpp"
#include "dispatch/registry.hpp"

#if BATTEN_WITH_CUDNN
#include "backends/cudnn/cudnn.hpp"
#endif
#if BATTEN_WITH_NATIVE
#include "backends/native/native.hpp"
#endif
#if BATTEN_WITH_SINGLE
#include "backends/single/single.hpp"
#endif

namespace batten::impl {
namespace {

[[maybe_unused]] std::unique_ptr<Backend> absent(const char* name, const char* reason,
                                                 const char* remedy, Elsewhere elsewhere) {
  return std::make_unique<AbsentBackend>(name, reason, remedy, elsewhere);
}

[[maybe_unused]] constexpr const char* kNoCuda = "this build of batten has no CUDA support";
[[maybe_unused]] constexpr const char* kWithCuda = "rebuild where nvcc 13 is installed";

std::unique_ptr<Backend> native_backend() {
#if BATTEN_WITH_NATIVE
  return make_native();
#elif BATTEN_WITH_CUDA
  return absent("native", "this build of batten was made without its sm90 kernels",
                "rebuild with 90a in BATTEN_CUDA_ARCHS",
                {native::predict, native::why_not_on, native::forms});
#else
  return absent("native", kNoCuda, kWithCuda, {native::predict, native::why_not_on, native::forms});
#endif
}

std::unique_ptr<Backend> cudnn_backend() {
#if BATTEN_WITH_CUDNN
  return make_cudnn();
#elif BATTEN_WITH_CUDA
  return absent("cudnn", "this build of batten was made without the cuDNN headers",
                "install cuDNN's headers and rebuild",
                {cudnn::predict, cudnn::why_not_on, cudnn::forms});
#else
  return absent("cudnn", kNoCuda, kWithCuda, {cudnn::predict, cudnn::why_not_on, cudnn::forms});
#endif
}

std::unique_ptr<Backend> single_backend() {
#if BATTEN_WITH_SINGLE
  return make_single();
#elif BATTEN_WITH_CUDA
  return absent("single", "this build of batten was made with BATTEN_SINGLE=off",
                "rebuild with -DBATTEN_SINGLE=d128", {single::predict, single::why_not_on});
#else
  return absent("single", kNoCuda, kWithCuda, {single::predict, single::why_not_on});
#endif
}

}  // namespace

std::vector<Registration> make_backends() {
  std::vector<Registration> all;
  all.push_back({native_backend()});
  all.push_back({cudnn_backend()});
  all.push_back({single_backend()});
  all.push_back({make_cpu()});
  all.push_back({make_reference(), /*automatic=*/false});
  return all;
}

}  // namespace batten::impl
