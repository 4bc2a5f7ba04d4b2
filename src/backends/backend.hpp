// The interface of a backend. A backend is a folder with one class that implements it; nothing
// outside the folder knows its insides.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost/prediction.hpp"
#include "problem/problem.hpp"

namespace batten::impl {

// Whether a backend can run on a device at all.
struct Availability {
  bool available = false;
  std::string reason;   // why not, one clause: "libcudnn.so.9 was not found"
  std::string remedy;   // how to get it: "install nvidia-cudnn-cu13 or set BATTEN_CUDNN"
  std::string library;  // version and place of the library it stands on, or its kernels, or ""
};

// The answer of a backend that needs a GPU where the device is none, or is not there; nothing where
// it is. `kernels` begins the sentence: "FlashInfer's kernels".
std::optional<Availability> without_gpu(Device device, std::string_view kernels);

// The static part of a receipt, fixed when the plan is built.
struct PlanInfo {
  std::string form = "dense";  // "dense", "packed" or "lengths"
  std::string kernel;
  std::string tile;
  int splits = 1;
  std::string library;
  std::size_t workspace_size = 0;  // bytes of scratch one forward needs
};

// A backend's prepared answer for one problem and shape. Immutable and shared between threads.
class Plan {
 public:
  virtual ~Plan() = default;
  const PlanInfo& info() const noexcept { return info_; }

  // Computes the call. `workspace` has info().workspace_size bytes, 256-byte aligned, used by no
  // other call in flight. The call's device is current. Device backends queue on call.stream and
  // neither synchronise nor allocate.
  virtual void run(const Shape& shape, const Call& call, void* workspace) const = 0;

  // What the calls so far have shown, for the next receipt; "" if nothing. Waits for none of them.
  virtual std::string remark() const { return {}; }

 protected:
  PlanInfo info_;
};

// How a backend is asked to serve: what follows its name, and the CPU threads.
struct BackendOptions {
  std::string form;     // "" or one of Backend::forms()
  int num_threads = 0;  // 0: as many as the process may use

  friend bool operator==(const BackendOptions&, const BackendOptions&) = default;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;

  // Forms that a user may force as "name:form".
  virtual std::vector<std::string> forms() const { return {}; }

  // Cheap after the first call for a device.
  virtual Availability availability(Device device) const = 0;

  // Why the backend cannot serve the problem on the device, or nothing. Called at construction.
  virtual std::optional<std::string> why_not(const Problem& problem, Device device) const = 0;

  // Why it cannot serve this shape (of a problem that it serves), or nothing.
  virtual std::optional<std::string> why_not(const Problem& problem, const Shape& shape,
                                             Device device, const BackendOptions& options) const {
    (void)problem, (void)shape, (void)device, (void)options;
    return std::nullopt;
  }

  // The shape with everything that this backend's plans do not bake in set to a fixed value, so
  // that calls which differ only there share a plan.
  virtual Shape plan_key(const Problem& problem, const Shape& shape,
                         const BackendOptions& options) const {
    (void)problem, (void)options;
    return shape;
  }

  // What of the environment its plans bake in: calls under other settings do not share them.
  virtual std::string settings() const { return {}; }

  // What a call that the backend serves would take on the card. Nothing where it cannot say; `auto`
  // then takes it only after those that can. Cheap: asked for each shape that is new.
  virtual std::optional<cost::Prediction> predict(const cost::Card& card, const Problem& problem,
                                                  const Shape& shape,
                                                  const BackendOptions& options) const {
    (void)card, (void)problem, (void)shape, (void)options;
    return std::nullopt;
  }

  // Why it would not serve the call on a card that need not be here, or nothing. What only the card
  // or a library on its machine could tell is taken for granted.
  virtual std::optional<std::string> why_not_on(const cost::Card& card, const Problem& problem,
                                                const Shape& shape,
                                                const BackendOptions& options) const {
    (void)card, (void)problem, (void)shape, (void)options;
    return "does not run on GPUs";
  }

  // Builds a plan for `shape`, which is plan_key()'s answer. May take long.
  virtual std::shared_ptr<const Plan> plan(const Problem& problem, const Shape& shape,
                                           Device device, const BackendOptions& options) const = 0;
};

}  // namespace batten::impl
