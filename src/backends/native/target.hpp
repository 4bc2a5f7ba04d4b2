// Which of the two families of kernels a device gets, and what of the device they depend on.
// Nothing here needs CUDA.
#pragma once

#include <optional>
#include <string>

#include "backends/backend.hpp"
#include "backends/native/division.hpp"
#include "backends/native/sm80/configuration.hpp"
#include "core/device.hpp"
#include "cost/card.hpp"

namespace batten::impl::native {

enum class Family {
  sm90,  // tensor memory accelerator and WGMMA: Hopper alone
  sm80,  // cp.async and mma.sync: every card since Ampere
};
const char* name_of(Family family) noexcept;

struct Target {
  Family family = Family::sm90;
  bool is_forced = false;  // it is not the family that the card would have
  int multiprocessors = 0;
  int shared_bytes = 0;     // of shared memory that a CTA may have; a multiprocessor has 1 KB more
  bool is_limited = false;  // its kernels may have less shared memory than the card gives

  // Whether the device and what was compiled for it let a launch begin while the one before ends:
  // Hopper, with the kernels that both families use compiled for it.
  bool overlaps_launches() const noexcept;
};

// Why no kernels run on devices of a compute capability (90 for sm90), or nothing.
std::optional<std::string> why_no_target(int arch);

// For a device, or for a card that need not be here. BATTEN_NATIVE_ARCH=sm80 asks for that family
// on a card that has both, and BATTEN_SMEM_LIMIT=N lets its kernels have N KB (48 to 227), as on
// another card; other values throw InvalidArgument. Unavailable, with why_no_target()'s reason,
// where there are no kernels.
Target target_of(const DeviceProperties& device);
Target target_of(const cost::CardProperties& card);

// The two variables as they are, for keys of plans.
std::string target_settings();

// Why a target's kernels cannot serve the problem, the shape or the form, or nothing; see
// rules.hpp.
std::optional<std::string> why_not(const Target& target, const Problem& problem);
std::optional<std::string> why_not(const Target& target, const Problem& problem, const Shape& shape,
                                   const std::string& form);

// The kernel that a call gets, of those that serve it.
struct Kernel {
  int keys = 0;  // of a step
  Workers workers;
  sm80::Configuration configuration;  // of that family
};
Kernel kernel_of(const Target& target, const Problem& problem, const Shape& shape,
                 const std::string& form);

// The name under which a card's constants of the kernels are kept.
const char* constants_of(const Target& target) noexcept;

// The kernels of the family, for `batten info`: "sm80 kernels: d64 128x64, ...".
std::string kernels_text(const Target& target);

}  // namespace batten::impl::native
