#include "support/receipt.hpp"

#include <fmt/format.h>

#include "support/console.hpp"

namespace batten::tools {

std::string receipt_text(const Receipt& r) {
  std::string text = fmt::format("{}, {}", r.backend(), r.form());
  if (!r.kernel().empty()) text += fmt::format(", kernel {}", r.kernel());
  if (!r.tile().empty()) text += fmt::format(", tile {}", r.tile());
  if (r.splits() > 1) text += fmt::format(", {} splits", r.splits());
  if (r.workspace_size() > 0)
    text += fmt::format(", {} KiB scratch", (r.workspace_size() + 1023) / 1024);
  if (!r.library().empty()) text += fmt::format(", {}", r.library());
  if (!r.reason().empty()) text += fmt::format(" ({})", r.reason());
  return one_line(text);
}

Json receipt_json(const Receipt& r) {
  return {{"backend", r.backend()},
          {"form", r.form()},
          {"kernel", r.kernel()},
          {"tile", r.tile()},
          {"splits", r.splits()},
          {"workspace_size", r.workspace_size()},
          {"plan_reused", r.plan_reused()},
          {"library", r.library()},
          {"reason", r.reason()}};
}

}  // namespace batten::tools
