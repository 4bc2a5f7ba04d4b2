// The conformance cases: attention calls described as data.
#pragma once

#include <batten/batten.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "served.hpp"

namespace batten::conformance {

enum class Form { bshd, packed };

// How q, k, v, out and lse lie in memory.
enum class Strides {
  contiguous,
  heads_first,     // [B, H, S, D] memory seen as [B, S, H, D]
  sequence_first,  // [S, B, H, D] memory
  fused,           // q, k and v rows as slices of one projection's rows
  padded,        // unused elements after each head, row and sample; a base that is only 16-aligned
  shared_batch,  // all samples share keys and values: batch stride 0
  shared_heads,  // all heads share keys and values: head stride 0
};

enum class Contents {
  randn,
  probe,         // V says which keys were seen: column d is 1 for the d-th slice of the keys
  peaked,        // few keys take nearly all the weight
  huge_logits,   // up to about 1e5
  equal_logits,  // all keys of a sample alike
  jumps,         // the running maximum leaps and falls from key block to key block
  tiny,          // inputs near the bottom of the format
  large_values,  // V near the top of the format
  nan_key,       // one visible key holds a NaN
  nan_value,     // one visible value holds NaNs
};

// What lies in padding, in gaps, between rows and past the end.
enum class Garbage { nan, infinity, finite };

// What is done with the call.
enum class Flow {
  plain,
  prepared,         // prepare(), then forward: must reuse the plan
  own_workspace,    // prepare() states the scratch, the caller gives exactly that
  repeated,         // the same bits each time
  batch_invariant,  // the same bits for each sample alone
  merged,           // two halves of the keys, then merge()
};

// A different call on the same object before the one that counts: a plan cache must tell them
// apart.
enum class Warmup { none, other_strides, other_scale, other_lengths, other_lse };

enum class Placement { host, device };

struct Case {
  std::string name;  // "group/what": seeds the inputs
  Problem problem;
  Form form = Form::bshd;
  std::int64_t batch = 1;
  std::int64_t q = 1;   // BSHD: rows of the buffer; packed: a sample's length
  std::int64_t kv = 1;  // likewise
  // Per-sample lengths; empty: every sample has q (kv).
  std::vector<std::int32_t> q_lengths = {};
  std::vector<std::int32_t> kv_lengths = {};
  // Packed: tokens that belong to no sample, in both buffers.
  std::int32_t gap = 0;    // after each sample, inside its offsets (lengths are then given too)
  std::int32_t lead = 0;   // before the first offset
  std::int32_t tail = 0;   // past the last offset
  bool loose_max = false;  // packed: max_q and max_kv well above the longest
  Placement placement = Placement::host;
  bool wild_lengths = false;  // device lengths far out of range, which must be clamped
  Strides strides = Strides::contiguous;
  Contents contents = Contents::randn;
  Garbage garbage = Garbage::nan;
  bool lse = false;
  std::optional<double> call_scale = {};
  Flow flow = Flow::plain;
  Warmup warmup = Warmup::none;
  bool quick = false;
  bool large = false;  // needs a GPU to end in reasonable time
};

enum class Set { quick, full };

// The cases for a backend on a kind of device: the special ones of design §2, in dtypes and head
// dims that its row of served.json lists, and the row's combinations themselves. Names are unique.
std::vector<Case> cases(Set set, const Served& served, DeviceType device);

// The part of the name before '/'.
std::string group_of(const Case& one);
// In order of first appearance.
std::vector<std::string> groups_of(const std::vector<Case>& list);

// The scale in force.
double scale_of(const Case& one);
int kv_heads_of(const Problem& problem) noexcept;
Grouping grouping_of(const Problem& problem) noexcept;
bool is_ragged(const Case& one);

// Properties that a row's may_refuse can name: "nonpositive_scale", "nonfinite_padding",
// "float32_output", "batch_invariant", "device_lengths", "empty_samples", "more_queries_than_keys"
// (under bottom-right causal), "gaps", "shared_kv".
std::vector<std::string> features(const Case& one);

// Why a refusal of this case is legal for the backend; nothing: it must be served.
std::optional<std::string> may_refuse(const Served& served, const Case& one);

}  // namespace batten::conformance
