// Samples of different lengths, put in the order in which CTAs take their tiles.
#pragma once

#include <cstddef>

#include "backends/native/shared/arguments.hpp"
#include "core/device.hpp"

namespace batten::impl::native {

// Bytes of a Deal of so many samples and CTAs.
std::size_t deal_bytes(int samples, int ctas);

// A Deal in that much memory, whose start is a multiple of 256 bytes. `cached_keys`: Deal's.
Deal deal_in(void* memory, int samples, int cached_keys);

// Loads the kernel that order_samples() will launch: the first launch may be in a capture.
// Error{Device}.
void load_order();

// Queues the making of the lists of a.deal, for the samples of `a`, which is not changed.
// `overlaps`: LaunchShape's. Error{Device} when the launch fails.
void order_samples(Arguments& a, bool overlaps, Stream stream);

}  // namespace batten::impl::native
