#!/bin/sh
# Prints the C, C++ and CUDA sources of the project, each followed by a NUL.
cd "$(dirname "$0")/.." || exit 1
find include src tools tests examples benchmarks python wan \
  \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' \) \
  -type f -print0 2>/dev/null | sort -z
