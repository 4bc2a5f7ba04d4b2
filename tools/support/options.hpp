// Values that several verbs take on the command line. All throw UsageError naming the option.
#pragma once

#include <CLI/CLI.hpp>
#include <batten/types.hpp>
#include <cstdint>
#include <string>

#include "support/environment.hpp"

namespace batten::tools {

inline constexpr const char* kDeviceHelp =
    "cpu, cuda or cuda:N [the first GPU where there is one, else cpu]";

// "cpu", "cuda" (the first) or "cuda:N".
Device parse_device(const std::string& text);

// "float32", "float16" or "bfloat16".
DType parse_dtype(const std::string& text);

// "none", "causal" (bottom-right) or "causal-top-left".
Mask parse_mask(const std::string& text);

// Of --mask, "" where it is not given, and --causal, which is another name for one of its values:
// throws where they contradict each other.
Mask parse_mask(const std::string& text, bool causal);

// Whether a text is a whole number, and nothing else, from `least` to `most`.
bool is_number(const std::string& text, std::int64_t least, std::int64_t most);

// Adds --threads: 1 to as many as a call may have; 0 stays where it is not given.
void add_threads_option(CLI::App& app, int& threads, const std::string& help);
inline constexpr const char* kThreadsHelp = "CPU threads [BATTEN_NUM_THREADS, else all]";

// "cudnn" of "cudnn:packed".
std::string backend_name(const std::string& backend);

// Throws for a backend or a form ("cudnn:packed") that the library does not have. "auto" is legal.
void check_backend_name(const std::string& option, const std::string& backend,
                        const LibraryInfo& info);

// Throws Unavailable with the library's reason and what to do if there is no such device. `backend`
// may be empty.
void require_device(Device device, const std::string& backend, const LibraryInfo& info);

// Where to run. Without --device (`text` is empty): the first GPU if there is one and the backend
// and dtype may run there. A backend that only runs on GPUs goes there in any case, and its own
// reason then says what is missing. `backend` may be empty: BATTEN_BACKEND is then asked.
Device choose_device(const std::string& text, const std::string& backend, DType dtype,
                     const LibraryInfo& info);

}  // namespace batten::tools
