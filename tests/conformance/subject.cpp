#include "subject.hpp"

#include <utility>

#include "served.hpp"

namespace batten::conformance {

CallOptions dense_options(const PackedOptions& o) {
  return {.lse = o.lse,
          .q_lengths = o.q_lengths,
          .kv_lengths = o.kv_lengths,
          .scale = o.scale,
          .padding_is_finite = o.padding_is_finite,
          .stream = o.stream,
          .workspace = o.workspace,
          .workspace_size = o.workspace_size};
}

BackendSubject::BackendSubject(std::string backend, Device device, int num_threads)
    : options_{.backend = std::move(backend), .num_threads = num_threads}, device_(device) {}

void BackendSubject::construct(const Problem& problem) {
  attention_.emplace(problem, device_, options_);
}

Receipt BackendSubject::forward(const Call& c) {
  if (c.packed) return attention_->forward_packed(c.q, c.k, c.v, c.out, c.options);
  return attention_->forward(c.q, c.k, c.v, c.out, dense_options(c.options));
}

std::uint64_t BackendSubject::prepare(const Call& c) {
  if (c.packed) return attention_->prepare_packed(c.q, c.k, c.v, c.out, c.options);
  return attention_->prepare(c.q, c.k, c.v, c.out, dense_options(c.options));
}

std::optional<std::string> why_unavailable(const std::string& backend, Device device) {
  // A problem that every backend serves, so that only availability can be in the way.
  Problem problem{.dtype = f16, .num_heads = 2, .head_dim = 128};
  if (const Served* served = find_served(backend)) {
    problem.dtype = served->dtypes.front();
    problem.head_dim = served->head_dims.back();
  }
  try {
    // Without the form: a build that lacks the backend knows none of its forms either.
    const Attention attention(problem, device, {.backend = backend.substr(0, backend.find(':'))});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Unavailable) return error.what();
    throw;
  }
  return {};
}

}  // namespace batten::conformance
