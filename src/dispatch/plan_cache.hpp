// Plans, built once and shared by every attention object of the process.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "backends/backend.hpp"

namespace batten::impl {

// Everything that tells two plans apart.
struct PlanKey {
  const Backend* backend = nullptr;
  Problem problem;
  Shape shape;  // the backend's plan_key()
  Device device;
  BackendOptions options;
  std::string settings;  // Backend::settings()

  friend bool operator==(const PlanKey&, const PlanKey&) = default;
};

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const noexcept;
};

// Bounded, least recently used first out; an evicted plan lives on while someone holds it. Building
// happens outside the lock, once a key: other threads that want it wait for it.
class PlanCache {
 public:
  static constexpr std::size_t kDefaultCapacity = 1024;

  explicit PlanCache(std::size_t capacity = kDefaultCapacity) : capacity_(capacity) {}

  static PlanCache& instance();

  struct Found {
    std::shared_ptr<const Plan> plan;
    bool reused = false;
  };
  // `build` throws on failure; the failure reaches every waiting thread and is not remembered.
  Found get(const PlanKey& key, const std::function<std::shared_ptr<const Plan>()>& build);

  std::size_t size() const;
  void clear();

 private:
  struct Entry {
    PlanKey key;
    std::mutex building;
    // Guarded by `building`; both null until the build has ended.
    std::shared_ptr<const Plan> plan;
    std::exception_ptr failure;
  };
  using List = std::list<std::shared_ptr<Entry>>;

  void forget(const std::shared_ptr<Entry>& entry);

  std::size_t capacity_;
  mutable std::mutex mutex_;  // guards the two below
  List recent_;               // most recently used first
  std::unordered_map<PlanKey, List::iterator, PlanKeyHash> index_;
};

}  // namespace batten::impl
