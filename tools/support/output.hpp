// Files that a verb writes at its end.
#pragma once

#include <string>
#include <string_view>

namespace batten::tools {

// Makes the file's folder where there is none, and fails now, not after the work, if a file could
// not be written there; leaves no file behind, and no folder that it made when it fails. Pipes and
// devices are not tried: a pipe's reader would take the end of the trial for the end of the file.
void prepare_output(const std::string& path);

// The whole file or none.
void write_text(const std::string& path, std::string_view text);

}  // namespace batten::tools
