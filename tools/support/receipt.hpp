// A receipt as text and as JSON.
#pragma once

#include <batten/batten.hpp>
#include <string>

#include "support/environment.hpp"

namespace batten::tools {

// "cpu, dense, kernel avx512_bf16 128x64, 1 split: the only one that serves float32"
std::string receipt_text(const Receipt& receipt);

Json receipt_json(const Receipt& receipt);

}  // namespace batten::tools
