// What `batten tune` measures.
#pragma once

#include <batten/batten.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cost/card.hpp"

namespace batten::tools {

namespace cost = impl::cost;

// What a measurement tells of a kernel.
enum class Purpose {
  costs,   // launches, tiles, blocks: short, so that neither power nor memory bound it
  power,   // seconds of full load: what the card sustains
  memory,  // many bytes for few operations
};

// One dense call of one kernel. `backend` is as the library takes it: "cudnn:packed".
struct TuneCall {
  std::string backend;
  std::string kernel;  // whose constants it is for; see cost::Constants
  Purpose purpose = Purpose::costs;
  Mask mask = Mask::none;
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 128;

  bool causal() const noexcept { return mask != Mask::none; }
  Problem problem() const;
  // "B4 128x4096, heads 12/4 x 128, causal"
  std::string str() const;
};

// The calls for a card with so many multiprocessors, kernel by kernel. Whether a backend is there
// and serves them is not asked.
std::vector<TuneCall> tune_calls(int multiprocessors);

// The dense calls of `--exhaustive`, each for every one of `backends`.
std::vector<cost::MeasuredShape> exhaustive_shapes();
TuneCall call_of(const cost::MeasuredShape& shape, const std::string& backend);

}  // namespace batten::tools
