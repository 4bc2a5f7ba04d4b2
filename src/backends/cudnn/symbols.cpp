#include "backends/cudnn/symbols.hpp"

#include "backends/cudnn/library.hpp"

namespace {

using batten::impl::cudnn::library_symbol;

// Two steps, so that the name is the renamed function's own and the string is cuDNN's.
#define BATTEN_FUNCTION(name, text) \
  static const auto function = reinterpret_cast<decltype(&name)>(library_symbol(text)); /* once */

}  // namespace

// Nothing here is called before the library is found; a function that it lacks is one that a
// version of cuDNN does not have.
extern "C" {

size_t cudnnGetVersion() {
  BATTEN_FUNCTION(cudnnGetVersion, "cudnnGetVersion")
  return function != nullptr ? function() : 0;
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  BATTEN_FUNCTION(cudnnGetErrorString, "cudnnGetErrorString")
  return function != nullptr ? function(status) : "cuDNN is not loaded";
}

void cudnnGetLastErrorString(char* message, size_t max_size) {
  BATTEN_FUNCTION(cudnnGetLastErrorString, "cudnnGetLastErrorString")
  if (max_size > 0) message[0] = '\0';
  if (function != nullptr) function(message, max_size);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  BATTEN_FUNCTION(cudnnCreate, "cudnnCreate")
  return function != nullptr ? function(handle) : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  BATTEN_FUNCTION(cudnnDestroy, "cudnnDestroy")
  return function != nullptr ? function(handle) : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  BATTEN_FUNCTION(cudnnSetStream, "cudnnSetStream")
  return function != nullptr ? function(handle, stream) : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  BATTEN_FUNCTION(cudnnGetStream, "cudnnGetStream")
  return function != nullptr ? function(handle, stream) : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  BATTEN_FUNCTION(cudnnBackendCreateDescriptor, "cudnnBackendCreateDescriptor")
  return function != nullptr ? function(type, descriptor) : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  BATTEN_FUNCTION(cudnnBackendDestroyDescriptor, "cudnnBackendDestroyDescriptor")
  return function != nullptr ? function(descriptor) : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  BATTEN_FUNCTION(cudnnBackendSetAttribute, "cudnnBackendSetAttribute")
  return function != nullptr ? function(descriptor, name, type, count, elements)
                             : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t* count, void* elements) {
  BATTEN_FUNCTION(cudnnBackendGetAttribute, "cudnnBackendGetAttribute")
  return function != nullptr ? function(descriptor, name, type, requested, count, elements)
                             : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  BATTEN_FUNCTION(cudnnBackendFinalize, "cudnnBackendFinalize")
  return function != nullptr ? function(descriptor) : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack) {
  BATTEN_FUNCTION(cudnnBackendExecute, "cudnnBackendExecute")
  return function != nullptr ? function(handle, plan, variant_pack) : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t*) {
  return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t) {
  return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t, cudnnDataType_t,
                                         cudnnTensorFormat_t, int, const int*) {
  return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnReorderFilterAndBias(const cudnnHandle_t, const cudnnFilterDescriptor_t,
                                        cudnnReorderType_t, const void*, void*, int, const void*,
                                        void*) {
  return CUDNN_STATUS_NOT_SUPPORTED;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*,
                               const char* const*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcGetPTXSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetPTX(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }

}  // extern "C"
