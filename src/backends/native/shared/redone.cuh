// Tiles that were computed twice.
#pragma once

#include "backends/native/shared/arguments.hpp"

namespace batten::impl::native {

// Adds to their count, Arguments::redone, and shows it to the host. For one thread of a CTA.
__device__ __forceinline__ void report_redone(const Arguments& a, unsigned tiles) {
  atomicAdd(a.redone, tiles);
  // The host's word is written and never added to: not every bus has atomics. Whoever showed a
  // count that was old by then shows the new one.
  unsigned long long shown;
  do {
    shown = *static_cast<volatile unsigned long long*>(a.redone);
    *a.redone_on_host = shown;
    __threadfence_system();
  } while (*static_cast<volatile unsigned long long*>(a.redone) != shown);
}

}  // namespace batten::impl::native
