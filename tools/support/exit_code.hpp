// The command's exit codes, the same for every verb.
#pragma once

#include <batten/types.hpp>
#include <stdexcept>
#include <string>

namespace batten::tools {

inline constexpr int kExitOk = 0;
inline constexpr int kExitInternal = 1;     // a fault of batten's own
inline constexpr int kExitUsage = 2;        // the command line is wrong
inline constexpr int kExitBadInput = 3;     // a file, a tensor or the environment is wrong
inline constexpr int kExitUnavailable = 4;  // no device or library, or it does not serve this
inline constexpr int kExitVerificationFailed = 5;  // numbers outside the bounds
inline constexpr int kExitInterrupted = 130;       // Ctrl-C, as shells report it

constexpr int exit_code_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::InvalidArgument:
      return kExitBadInput;
    case ErrorCode::Unsupported:
    case ErrorCode::Unavailable:
    case ErrorCode::OutOfMemory:
    case ErrorCode::Device:
      return kExitUnavailable;
    case ErrorCode::Internal:
      break;
  }
  return kExitInternal;
}

// A mistake in the command line that only shows after parsing; the message names the option.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace batten::tools
