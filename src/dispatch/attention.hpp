// One layer's attention: the chosen backend, and the way from a call to its kernel.
#pragma once

#include <batten/batten.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/backend.hpp"
#include "dispatch/choice.hpp"
#include "dispatch/ranking.hpp"
#include "problem/validate.hpp"

namespace batten::impl {

class Attention {
 public:
  // Chooses and checks now. InvalidArgument, Unavailable or Unsupported.
  Attention(const batten_problem& problem, Device device, const batten_options& options);

  // Builds the plan and reserves its scratch; returns the scratch's bytes.
  std::size_t prepare(const batten_call& call);

  // `receipt` may be null. It is zeroed up to its struct_size.
  void forward(const batten_call& call, batten_receipt* receipt);

 private:
  // A shape's answer: which backend serves it, with which plan.
  struct Resolved {
    Shape shape;
    std::shared_ptr<const Plan> plan;
    batten_receipt receipt{};
  };
  std::vector<const Backend*> find_candidates(std::string& passed_over) const;
  Ranking ranked(const Shape& shape) const;
  std::shared_ptr<const Plan> plan(const Backend& backend, const Shape& shape, bool& reused) const;
  std::shared_ptr<const Resolved> resolve(const Shape& shape, bool& reused);
  std::shared_ptr<const Resolved> build(const Shape& shape, bool& reused) const;
  void check_device_lengths(const ValidatedCall& call) const;
  std::string others_that_serve(const Backend* except, const Shape* shape) const;

  ValidatedProblem problem_;
  Device device_;
  Choice choice_;
  BackendOptions options_;
  bool check_;                              // BATTEN_CHECK
  std::vector<const Backend*> candidates_;  // the explicit backend alone, or auto's
  std::string passed_over_;                 // why auto left the others out
  std::shared_ptr<const cost::Card> card_;  // auto on a GPU: what it predicts times by

  // The shapes seen last: a denoising loop alternates between few, a server's batches between more.
  // `marks_` finds one without looking at them all.
  static constexpr std::size_t kRecent = 64;
  std::mutex mutex_;  // guards the three below
  std::array<std::uint64_t, kRecent> marks_{};
  std::array<std::shared_ptr<const Resolved>, kRecent> recent_;
  std::size_t next_recent_ = 0;
};

}  // namespace batten::impl
