// Alone in its file: it is compiled anew for each commit.
#include "support/revision.hpp"

namespace batten::tools {

std::string git_revision() { return BATTEN_GIT_REVISION; }

}  // namespace batten::tools
