#include "dispatch/receipt.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace batten::impl {
namespace {

template <std::size_t N>
void put(char (&target)[N], std::string_view text) {
  const std::size_t n = std::min(text.size(), N - 1);
  std::memcpy(target, text.data(), n);
  target[n] = '\0';
}

}  // namespace

batten_receipt make_receipt(std::string_view backend, const PlanInfo& plan,
                            std::string_view reason) {
  batten_receipt r{};
  put(r.backend, backend);
  put(r.form, plan.form);
  put(r.kernel, plan.kernel);
  put(r.tile, plan.tile);
  put(r.library, plan.library);
  put(r.reason, reason);
  r.splits = plan.splits;
  r.workspace_size = plan.workspace_size;
  return r;
}

void add_remark(batten_receipt& receipt, std::string_view remark) {
  put(receipt.kernel, std::string(receipt.kernel).append(", ").append(remark));
}

void copy_receipt(const batten_receipt& source, bool plan_reused, batten_receipt& target) {
  const std::size_t size = target.struct_size;
  const std::size_t known = std::min(size, sizeof(batten_receipt));
  auto* bytes = reinterpret_cast<unsigned char*>(&target);
  std::memcpy(bytes, &source, known);
  std::memset(bytes + known, 0, size - known);
  target.struct_size = size;
  if (known >= offsetof(batten_receipt, plan_reused) + sizeof(target.plan_reused)) {
    target.plan_reused = plan_reused ? 1 : 0;
  }
}

}  // namespace batten::impl
