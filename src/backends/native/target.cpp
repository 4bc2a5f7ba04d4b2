#include "backends/native/target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "backends/native/rules.hpp"
#include "backends/native/sm80/configuration.hpp"
#include "core/env.hpp"
#include "core/error.hpp"

namespace batten::impl::native {
namespace {

constexpr int kKilobyte = 1024;
constexpr const char* kArchVariable = "BATTEN_NATIVE_ARCH";
constexpr const char* kLimitVariable = "BATTEN_SMEM_LIMIT";

// By compute capability, what a CTA may have.
int shared_bytes_of(int arch) {
  switch (arch) {
    case 80:
    case 87:
      return 163 * kKilobyte;
    case 90:
    case 100:
    case 103:
    case 110:
      return 227 * kKilobyte;
    default:
      return 99 * kKilobyte;
  }
}

// What BATTEN_NATIVE_ARCH asks for.
std::optional<Family> asked_for() {
  const auto value = environment(kArchVariable);
  if (!value) return std::nullopt;
  for (const Family family : {Family::sm80, Family::sm90}) {
    if (*value == name_of(family)) return family;
  }
  fail(ErrorCode::InvalidArgument, "{} is '{}', not sm80 or sm90", kArchVariable, *value);
}

bool is_built(Family family) noexcept {
  constexpr bool kBuilt[] = {BATTEN_NATIVE_SM90 != 0, BATTEN_NATIVE_SM80 != 0};  // as in Family
  return kBuilt[static_cast<std::size_t>(family)];
}

constexpr int kHopper = 90;

Family family_of(int arch) {
  const bool own = arch == kHopper && is_built(Family::sm90);
  return asked_for().value_or(own ? Family::sm90 : Family::sm80);
}

Target target_of(int arch, int multiprocessors, int shared_bytes) {
  if (const auto reason = why_no_target(arch)) {
    fail(ErrorCode::Unavailable, "native: {}", *reason);
  }
  Target t{
      .family = family_of(arch), .multiprocessors = multiprocessors, .shared_bytes = shared_bytes};
  if (const auto limit = environment_int(kLimitVariable, 48, 227)) {
    t.shared_bytes = std::min(shared_bytes, static_cast<int>(*limit) * kKilobyte);
  }
  t.is_forced = arch == kHopper && t.family != Family::sm90;
  t.is_limited = t.family == Family::sm80 && t.shared_bytes < shared_bytes;
  return t;
}

}  // namespace

const char* name_of(Family family) noexcept { return family == Family::sm90 ? "sm90" : "sm80"; }

bool Target::overlaps_launches() const noexcept {
  return (family == Family::sm90 || is_forced) && is_built(Family::sm90);
}

std::optional<std::string> why_no_target(int arch) {
  if (arch < 80) return fmt::format("its kernels are for sm80 and newer, not sm{}", arch);
  const Family family = family_of(arch);
  if (family == Family::sm90 && arch != kHopper) {
    return fmt::format("{}=sm90 is for sm90, not sm{}", kArchVariable, arch);
  }
  if (!is_built(family)) {
    return fmt::format("this build has no {} kernels (BATTEN_CUDA_ARCHS)", name_of(family));
  }
  return std::nullopt;
}

Target target_of(const DeviceProperties& device) {
  return target_of(device.arch(), device.multiprocessors,
                   static_cast<int>(device.shared_memory_per_block));
}

Target target_of(const cost::CardProperties& card) {
  return target_of(card.arch, card.multiprocessors, shared_bytes_of(card.arch));
}

std::string target_settings() {
  return fmt::format("{} {}", environment(kArchVariable).value_or(""),
                     environment(kLimitVariable).value_or(""));
}

std::optional<std::string> why_not(const Target& target, const Problem& problem) {
  if (target.family == Family::sm90) return why_not(problem);
  if (auto reason = why_not_elements(problem)) return reason;
  const std::vector<int> dims = sm80::head_dims();
  if (std::ranges::find(dims, problem.head_dim) == dims.end()) {
    return fmt::format("its kernels are compiled for head_dim {}, not {}", fmt::join(dims, ", "),
                       problem.head_dim);
  }
  if (sm80::choose(problem.head_dim, target.shared_bytes).warps == 0) {
    return fmt::format("its kernels for head_dim {} need more than {} KB of shared memory",
                       problem.head_dim, target.shared_bytes / kKilobyte);
  }
  return std::nullopt;
}

std::optional<std::string> why_not(const Target& target, const Problem& problem, const Shape& shape,
                                   const std::string& form) {
  if (target.family == Family::sm90) {
    if (auto reason = why_not_form(problem, form)) return reason;
    return why_not(problem, shape);
  }
  if (names_tile(form)) return fmt::format("tile {} is one of the sm90 kernels'", form);
  return why_not_counts(problem, shape);
}

Kernel kernel_of(const Target& target, const Problem& problem, const Shape& shape,
                 const std::string& form) {
  if (target.family == Family::sm90) {
    const int keys = block_keys(problem, shape, form, target.multiprocessors);
    const bool can_join = problem.head_dim == kJoinedHeadDim && keys == kJoinedKeys;
    return {.keys = keys,
            .workers = sm90_workers(target.multiprocessors, can_join),
            .configuration = {}};
  }
  const sm80::Configuration c = sm80::choose(problem.head_dim, target.shared_bytes);
  return {
      .keys = c.block_keys,
      .workers = sm80_workers(target.multiprocessors, c.ctas(target.shared_bytes), c.block_keys),
      .configuration = c};
}

const char* constants_of(const Target& target) noexcept {
  return target.family == Family::sm90 ? "native" : "native:sm80";
}

std::string kernels_text(const Target& target) {
  if (target.family == Family::sm90) return "sm90 kernels";
  std::vector<std::string> kernels;
  for (const int dim : sm80::head_dims()) {
    const sm80::Configuration c = sm80::choose(dim, target.shared_bytes);
    if (c.warps > 0) kernels.push_back(fmt::format("d{} {}", dim, c.str(target.shared_bytes)));
  }
  return fmt::format("sm80 kernels for {} KB of shared memory: {}", target.shared_bytes / kKilobyte,
                     fmt::join(kernels, "; "));
}

}  // namespace batten::impl::native
