// The backends of this process.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.hpp"

namespace batten::impl {

struct Registration {
  std::unique_ptr<Backend> backend;
  bool automatic = true;  // whether `auto` may choose it
};

// In the order of `auto`'s preference. Defined in backends/registration.cpp: the one place that
// names them all.
std::vector<Registration> make_backends();

class Registry {
 public:
  static Registry& instance();

  std::span<const Registration> all() const noexcept { return entries_; }
  const Backend* find(std::string_view name) const noexcept;
  // "auto, native, cudnn, ..." for messages.
  std::string legal_names() const;

  // Replaces all backends; returns the previous ones. For tests, while no call is in flight.
  std::vector<Registration> exchange_for_test(std::vector<Registration> entries);

 private:
  Registry() : entries_(make_backends()) {}
  std::vector<Registration> entries_;
};

}  // namespace batten::impl
