// How much memory there is to be had.
#pragma once

#include <batten/types.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace batten::tools {

// Bytes that are free on the device; on the CPU those that the system and the process's control
// group would give. Nothing where the system does not say. Error{Unavailable} for a GPU in a build
// without CUDA.
std::optional<double> available_bytes(Device device);

// What Linux's /proc/meminfo says; nothing where it does not.
std::optional<double> available_in(std::string_view meminfo);

// What a control group's memory.max, memory.current and memory.stat leave; nothing without a limit.
std::optional<double> left_in_group(std::string_view max, std::string_view current,
                                    std::string_view stat);

// "1.5 GiB", "20.0 MiB".
std::string bytes_text(double bytes);

// In gpu_timer.cpp; only defined in a build with CUDA.
std::size_t gpu_free_bytes(int index);

}  // namespace batten::tools
