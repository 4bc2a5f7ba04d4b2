#include "dispatch/registry.hpp"

#include <utility>

namespace batten::impl {

Registry& Registry::instance() {
  static auto* registry = new Registry;  // never destroyed: plans outlive static destructors
  return *registry;
}

const Backend* Registry::find(std::string_view name) const noexcept {
  for (const Registration& entry : entries_) {
    if (entry.backend->name() == name) return entry.backend.get();
  }
  return nullptr;
}

std::string Registry::legal_names() const {
  std::string names = "auto";
  for (const Registration& entry : entries_) {
    names += ", ";
    names += entry.backend->name();
  }
  return names;
}

std::vector<Registration> Registry::exchange_for_test(std::vector<Registration> entries) {
  return std::exchange(entries_, std::move(entries));
}

}  // namespace batten::impl
