// CUDA calls checked, and graphs recorded, in programs beside the library, which hides its own
// symbols. Header-only; includes CUDA's headers.
#pragma once

#include <cuda_runtime_api.h>

#include <batten/types.hpp>
#include <functional>
#include <memory>
#include <string>

namespace batten::impl {

// Error{OutOfMemory or Device} that says what failed and what CUDA reported. (Without {fmt}, which
// nvcc does not compile.)
inline void check_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // clears what is not sticky
  throw Error(error == cudaErrorMemoryAllocation ? ErrorCode::OutOfMemory : ErrorCode::Device,
              std::string(what) + ": CUDA reported " + cudaGetErrorString(error) + " (" +
                  cudaGetErrorName(error) + ")");
}

// What `calls` queues on the stream, as a graph that can be launched. Whatever `calls` throws
// leaves the stream as it was.
inline std::shared_ptr<CUgraphExec_st> record_graph(cudaStream_t stream,
                                                    const std::function<void()>& calls) {
  cudaGraph_t graph = nullptr;
  check_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graph capture");
  try {
    calls();
  } catch (...) {
    // A stream that is left capturing would be of no further use.
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  check_status(cudaStreamEndCapture(stream, &graph), "graph capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  check_status(error, "cudaGraphInstantiate");
  return {executable, [](cudaGraphExec_t e) { (void)cudaGraphExecDestroy(e); }};
}

}  // namespace batten::impl
