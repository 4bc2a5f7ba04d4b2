// The cards whose constants come with batten: one JSON document for each in cards/, compiled in.
#pragma once

#include <span>
#include <string_view>

#include "cost/document.hpp"

namespace batten::impl::cost {

struct ShippedCard {
  std::string_view key;  // the file's name, and how users name it: "h200"
  Document document;
};

// Parsed when first asked for.
std::span<const ShippedCard> shipped_cards();

// By its key or by the card's own name, in capitals or not: "H200", "NVIDIA H200". Null where there
// is none.
const ShippedCard* find_shipped(std::string_view key);

// "h200, ..." for messages.
std::string shipped_keys();

}  // namespace batten::impl::cost
