// Which commit this is.
#pragma once

#include <string>

namespace batten::tools {

// The commit that was built, or "unknown".
std::string git_revision();

}  // namespace batten::tools
