// Receipts: what ran, and why.
#pragma once

#include <batten/batten.h>

#include <string_view>

#include "backends/backend.hpp"

namespace batten::impl {

// Strings that do not fit are cut.
batten_receipt make_receipt(std::string_view backend, const PlanInfo& plan,
                            std::string_view reason);

// Puts `remark` behind the kernel's name.
void add_remark(batten_receipt& receipt, std::string_view remark);

// Copies as much as the caller's struct_size holds; zeroes what a newer caller's struct has beyond.
void copy_receipt(const batten_receipt& source, bool plan_reused, batten_receipt& target);

}  // namespace batten::impl
