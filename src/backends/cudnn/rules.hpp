// What the backend serves, in which form, and what its plans bake in. Needs no cuDNN and no CUDA.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "problem/problem.hpp"

namespace batten::impl::cudnn {

// Versions are numbers as cudnnGetVersion() gives them: 91900 is 9.19.0.
inline constexpr std::size_t kOldestVersion = 91002;    // 9.10.0 and 9.10.1 compute SDPA wrongly
inline constexpr std::size_t kRaggedBelowSm90 = 91801;  // first with token offsets on sm80 to sm89
inline constexpr int kOldestArch = 80;
inline constexpr int kMaxHeadDim = 256;
inline constexpr std::int64_t kMaxBatch = 65535;  // samples are a dimension of cuDNN's grids

std::string version_text(std::size_t version);  // "9.19.0"

// How a batch is stated to cuDNN.
enum class Form : std::int8_t {
  dense,    // BSHD strides, no lengths: all samples alike
  packed,   // where each sample begins, in elements, and its lengths
  lengths,  // BSHD strides and the lengths
};
const char* name_of(Form form) noexcept;
std::optional<Form> parse_form(std::string_view name) noexcept;
std::vector<std::string> forms();  // their names, which a user may force

// How the dense form states keys or values that all samples share (batch stride 0): TMA's tensor
// maps have no stride 0.
enum class Sharing : std::int8_t {
  none,      // each sample has its own
  merged,    // all queries are of one sample
  repeated,  // the graph is of one sample and runs once for each
};
Sharing sharing_of(const Problem& problem, const Shape& shape) noexcept;

// The mask of a cuDNN graph; `bottom_right` only where no sample has more queries than keys.
enum class Diagonal : std::int8_t { none, top_left, bottom_right };

// The fastest form that states `shape` exactly.
Form default_form(const Problem& problem, const Shape& shape) noexcept;

// The form that `name` forces, or the default. `name` is "" or one of the forms.
Form form_of(const Problem& problem, const Shape& shape, std::string_view name) noexcept;

// Why cuDNN of this version does not serve the problem on this architecture, or nothing.
std::optional<std::string> why_not(const Problem& problem, int arch, std::size_t version);

// Why it does not serve this shape of a problem that it serves, or nothing.
std::optional<std::string> why_not(const Problem& problem, const Shape& shape,
                                   std::string_view forced_form, int arch, std::size_t version);

// No key anywhere, or no query: the answer is zeros, and cuDNN is not asked.
constexpr bool is_trivial(const Shape& shape) noexcept {
  return shape.batch == 0 || shape.max_q == 0 || shape.max_kv == 0;
}

// The shape as the plan cache compares it: what a plan does not bake in has a fixed value.
Shape plan_key(const Problem& problem, const Shape& shape, std::string_view forced_form);

// The smallest declared length that serves `length`: few plans for many lengths, at most a quarter
// longer. cuDNN's time follows the real lengths, not the declared ones.
std::int64_t bucket(std::int64_t length) noexcept;

// A cuDNN graph: everything that its plan bakes in.
struct GraphKey {
  DType dtype = DType::none;
  std::int32_t num_heads = 0;
  std::int32_t num_k_heads = 0;
  std::int32_t num_v_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t head_dim_v = 0;
  std::int64_t batch = 0;
  std::int64_t rows_q = 0;  // declared; the dense form's real ones
  std::int64_t rows_kv = 0;
  Form form = Form::dense;
  Diagonal diagonal = Diagonal::none;
  bool lse = false;
  Layout q, k, v, out, lse_layout;

  // One line that no other key has; part of a plan file's key.
  std::string text() const;

  friend bool operator==(const GraphKey&, const GraphKey&) = default;
};

// The graph for a plan key that is not trivial.
GraphKey graph_key(const Problem& problem, const Shape& key, Form form);

// First rows of every sample of a dense call that see no key: bottom-right causal with more
// queries than keys. cuDNN computes the square below them.
constexpr std::int64_t dense_head_rows(Mask mask, const Shape& shape) noexcept {
  return mask == Mask::causal && shape.max_q > shape.max_kv ? shape.max_q - shape.max_kv : 0;
}

}  // namespace batten::impl::cudnn
