// Which constants a card gets.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/device.hpp"
#include "cost/card.hpp"
#include "cost/document.hpp"

namespace batten::impl::cost {

CardProperties card_properties(const DeviceProperties& device);

// Constants for a card of which nothing is known but its properties: those of the first shipped
// card, in proportion.
Card estimate(const CardProperties& properties);

// Those that come with batten, where the card is shipped (same name and multiprocessors), else
// estimates.
Card known_card(const CardProperties& properties);

// The card under a shipped key ("h200"). InvalidArgument that lists the keys for another.
Card named_card(const std::string& key);

// Where a card's measured constants lie: cards/<name>-<multiprocessors>.json below the user's cache
// folder (BATTEN_CACHE_DIR, else $XDG_CACHE_HOME/batten, else ~/.cache/batten). Nothing without
// one.
std::optional<std::filesystem::path> card_path(const CardProperties& properties);

// known_card(), with what the document at `path` measured in its place. A file that is not there is
// none; one that is wrong, or of another card, is named in one warning and left alone.
Card card_with_file(const CardProperties& properties, const std::filesystem::path& path);

// Of the device, from its file if there is one. Read once a process and kind of card.
std::shared_ptr<const Card> card_of(const DeviceProperties& device);

}  // namespace batten::impl::cost
