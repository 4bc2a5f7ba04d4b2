#!/bin/sh
# Succeeds where CUDA code can be compiled.
command -v nvcc >/dev/null 2>&1 || [ -x "${CUDACXX:-${CUDA_PATH:-/usr/local/cuda}/bin/nvcc}" ]
