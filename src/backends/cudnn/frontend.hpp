// cudnn-frontend, over our names for cuDNN's functions. Slow to compile: for graph.cpp alone.
#pragma once

// The order matters.
// clang-format off
#include "backends/cudnn/symbols.hpp"
#include <cudnn_frontend.h>
// clang-format on
