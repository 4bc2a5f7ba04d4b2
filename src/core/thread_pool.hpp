// Loops whose iterations run on several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace batten::impl {

// Of one loop.
inline constexpr int kMaxThreads = 1024;

// CPUs in the affinity mask of the calling thread.
int available_cpus();

// BATTEN_NUM_THREADS, or available_cpus(). Throws InvalidArgument where the variable is no count.
int default_num_threads();

// Calls invoke(context, index, slot) for every index in [0, count) on at most `num_threads`
// threads, of which the caller is one, and returns when all are done. `slot` in [0, num_threads)
// differs between the threads of one loop, so it can pick scratch. Any number of callers at once.
// The first exception of an iteration is thrown again here; iterations not yet begun are then left
// out.
using LoopBody = void (*)(void* context, std::int64_t index, int slot);
void run_loop(std::int64_t count, int num_threads, LoopBody invoke, void* context);

template <class Body>
void parallel_for(std::int64_t count, int num_threads, Body&& body) {
  using Function = std::remove_reference_t<Body>;
  run_loop(
      count, num_threads,
      [](void* context, std::int64_t index, int slot) {
        (*static_cast<Function*>(context))(index, slot);
      },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace batten::impl
