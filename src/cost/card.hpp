// What a GPU's kernels cost: a few constants for each, measured on the card, shipped with batten or
// estimated. Nothing here needs CUDA.
#pragma once

#include <batten/types.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace batten::impl::cost {

// Where constants come from, best first.
enum class Origin : std::int8_t {
  measured,   // on this card, by `batten tune`
  shipped,    // on a card of this kind, with batten
  estimated,  // from the device's properties and another card's constants
};
const char* name_of(Origin origin) noexcept;

// "native d128 causal"
std::string kernel_name(std::string_view kernel, int head_dim, bool causal);

// What a kernel's time is made of. Kernels of one name differ by head dim and mask.
struct Constants {
  std::string kernel;  // "native", "cudnn", "cudnn:packed", ...
  int head_dim = 128;
  bool causal = false;
  double launch_us = 0;  // each launch, whatever it computes
  double tile_us = 0;    // each tile that a multiprocessor begins
  double block_us = 0;   // each block of 128 keys of a tile, wider ones in proportion
  double part_us = 0;    // each part of a divided tile that is put aside
  double merge_us = 0;   // each part that is merged into a tile
  double tflops = 0;     // what the card sustains at its power limit; 0: no limit
  double gbps = 0;       // 10^9 bytes a second from memory; 0: no limit

  std::string str() const { return kernel_name(kernel, head_dim, causal); }
  friend bool operator==(const Constants&, const Constants&) = default;
};

// A dense call whose backends were all measured.
struct MeasuredShape {
  DType dtype = DType::none;
  Mask mask = Mask::none;
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;

  friend bool operator==(const MeasuredShape&, const MeasuredShape&) = default;
};
struct Measured {
  MeasuredShape shape;
  std::vector<std::pair<std::string, double>> us;  // by backend

  std::optional<double> of(std::string_view backend) const;
  friend bool operator==(const Measured&, const Measured&) = default;
};

// What tells cards apart, and what estimates are made of.
struct CardProperties {
  std::string name;  // "NVIDIA H200"
  int arch = 0;      // 90 for sm90
  int multiprocessors = 0;
  double clock_mhz = 0;    // the highest of the multiprocessors; 0: unknown
  double memory_gbps = 0;  // what the memory could do; 0: unknown

  friend bool operator==(const CardProperties&, const CardProperties&) = default;
};

// A card with all that is known of it.
class Card {
 public:
  struct Entry {
    Constants constants;
    Origin origin = Origin::estimated;
  };

  Card() = default;
  explicit Card(CardProperties properties) : properties_(std::move(properties)) {}

  const CardProperties& properties() const noexcept { return properties_; }
  const std::vector<Entry>& entries() const noexcept { return entries_; }

  // Replaces the constants of the same kernel, head dim and mask, or adds them.
  void set(const Constants& constants, Origin origin);
  void set_measured(std::vector<Measured> measured) { measured_ = std::move(measured); }

  // The kernel's constants; those of another head dim, scaled, where its own are not known (then
  // an estimate). Nothing if the kernel is not known at all.
  std::optional<Entry> find(std::string_view kernel, int head_dim, bool causal) const;

  // What was measured of exactly this call; null where nothing was.
  const Measured* find_measured(const MeasuredShape& shape) const noexcept;

 private:
  CardProperties properties_;
  std::vector<Entry> entries_;
  std::vector<Measured> measured_;
};

}  // namespace batten::impl::cost
