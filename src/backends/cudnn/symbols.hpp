// Gives the C functions that cudnn-frontend and we call names of our own. symbols.cpp defines them
// as calls into the libcudnn that was found at run time, so nothing links against cuDNN, and a
// program that links batten statically keeps its own cuDNN and NVRTC.
//
// This header includes cudnn.h and nvrtc.h; nothing may include them before it. The frontend's own
// dynamic loading is not used: it opens libcudart and libcuda by name, which fails where the
// runtime is linked statically, and in a process that can reach two versions of libcudart.
#pragma once

#if defined(CUDNN_H_) || defined(CUDNN_GRAPH_H_) || defined(__NVRTC_H__)
#error "include symbols.hpp instead of cudnn.h and nvrtc.h"
#endif

#define cudnnBackendCreateDescriptor batten_cudnnBackendCreateDescriptor
#define cudnnBackendDestroyDescriptor batten_cudnnBackendDestroyDescriptor
#define cudnnBackendExecute batten_cudnnBackendExecute
#define cudnnBackendFinalize batten_cudnnBackendFinalize
#define cudnnBackendGetAttribute batten_cudnnBackendGetAttribute
#define cudnnBackendSetAttribute batten_cudnnBackendSetAttribute
#define cudnnCreate batten_cudnnCreate
#define cudnnCreateFilterDescriptor batten_cudnnCreateFilterDescriptor
#define cudnnDestroy batten_cudnnDestroy
#define cudnnDestroyFilterDescriptor batten_cudnnDestroyFilterDescriptor
#define cudnnGetErrorString batten_cudnnGetErrorString
#define cudnnGetLastErrorString batten_cudnnGetLastErrorString
#define cudnnGetStream batten_cudnnGetStream
#define cudnnGetVersion batten_cudnnGetVersion
#define cudnnReorderFilterAndBias batten_cudnnReorderFilterAndBias
#define cudnnSetFilterNdDescriptor batten_cudnnSetFilterNdDescriptor
#define cudnnSetStream batten_cudnnSetStream

// Only the frontend's own kernels use NVRTC directly, and batten asks for none of them. Nor does it
// reorder filters; an unoptimised build refers to those functions all the same.
#define nvrtcCompileProgram batten_nvrtcCompileProgram
#define nvrtcCreateProgram batten_nvrtcCreateProgram
#define nvrtcDestroyProgram batten_nvrtcDestroyProgram
#define nvrtcGetCUBIN batten_nvrtcGetCUBIN
#define nvrtcGetCUBINSize batten_nvrtcGetCUBINSize
#define nvrtcGetPTX batten_nvrtcGetPTX
#define nvrtcGetPTXSize batten_nvrtcGetPTXSize
#define nvrtcGetProgramLog batten_nvrtcGetProgramLog
#define nvrtcGetProgramLogSize batten_nvrtcGetProgramLogSize

#include <cudnn.h>
#include <nvrtc.h>
