#include "cost/lookup.hpp"

#include <fmt/format.h>

#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <system_error>

#include "core/cache_folder.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "cost/shipped.hpp"

namespace batten::impl::cost {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = 16u << 20;

// Dense products of 16-bit numbers of one multiprocessor in a clock, in operations.
double operations_per_clock(int arch) {
  if (arch < 80) return 512;
  if (arch == 80) return 2048;
  if (arch < 90) return 1024;
  if (arch < 100) return 4096;
  return arch < 120 ? 8192 : 1024;
}

// Those of mma.sync, with which the tensor cores of Hopper and Blackwell do not reach their speed
// (Hopper's measured).
double operations_of_mma_sync(int arch) {
  if (arch < 90) return operations_per_clock(arch);
  if (arch < 100) return 2400;
  return arch < 120 ? 2048 : 1024;
}

double operations_of(const Constants& kernel, int arch) {
  return kernel.kernel == "native:sm80" ? operations_of_mma_sync(arch) : operations_per_clock(arch);
}

double ratio(double a, double b) { return a > 0 && b > 0 ? a / b : 1; }

Card card_from(const Document& document, const CardProperties& properties, Origin origin) {
  Card card(properties);
  for (const Constants& c : document.kernels) card.set(c, origin);
  card.set_measured(document.measured);
  return card;
}

bool same_card(const CardProperties& a, const CardProperties& b) {
  return a.name == b.name && a.multiprocessors == b.multiprocessors;
}

// Nothing where there is no file; throws Error for one that cannot be read.
std::optional<std::string> read_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return std::nullopt;
  if (!fs::is_regular_file(status)) fail(ErrorCode::InvalidArgument, "it is no regular file");
  if (fs::file_size(path, error) > kMostBytes) fail(ErrorCode::InvalidArgument, "it is too long");
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) fail(ErrorCode::InvalidArgument, "it cannot be read");
  return text;
}

}  // namespace

CardProperties card_properties(const DeviceProperties& device) {
  return {.name = one_line(device.name),
          .arch = device.arch(),
          .multiprocessors = device.multiprocessors,
          .clock_mhz = device.clock_mhz,
          .memory_gbps = device.memory_gbps};
}

Card estimate(const CardProperties& properties) {
  const Document& reference = shipped_cards().front().document;
  const CardProperties& its = reference.card;
  const double clock = ratio(properties.clock_mhz, its.clock_mhz);
  const double multiprocessors = ratio(properties.multiprocessors, its.multiprocessors);
  const double memory = ratio(properties.memory_gbps, its.memory_gbps);
  Card card(properties);
  for (Constants c : reference.kernels) {
    // Of one multiprocessor.
    const double speed = clock * operations_of(c, properties.arch) / operations_of(c, its.arch);
    c.tile_us /= speed;
    c.block_us /= speed;
    c.part_us /= memory;
    c.merge_us /= memory;
    c.tflops *= speed * multiprocessors;
    c.gbps *= memory;
    card.set(c, Origin::estimated);
  }
  return card;
}

Card known_card(const CardProperties& properties) {
  for (const ShippedCard& shipped : shipped_cards()) {
    if (same_card(shipped.document.card, properties))
      return card_from(shipped.document, properties, Origin::shipped);
  }
  return estimate(properties);
}

Card named_card(const std::string& key) {
  const ShippedCard* shipped = find_shipped(key);
  if (shipped == nullptr) {
    fail(ErrorCode::InvalidArgument,
         "no constants of a card '{}' come with batten, but of {}; for another card, run it there: "
         "it is estimated, or measured by `batten tune`",
         key, shipped_keys());
  }
  return card_from(shipped->document, shipped->document.card, Origin::shipped);
}

std::optional<fs::path> card_path(const CardProperties& properties) {
  const auto folder = cache_folder();
  if (!folder) return std::nullopt;
  std::string name;
  for (const unsigned char c : properties.name) {
    const bool plain = std::isalnum(c) != 0;
    if (plain) name += static_cast<char>(std::tolower(c));
    if (!plain && !name.empty() && name.back() != '-') name += '-';
  }
  return *folder / "cards" / fmt::format("{}-{}.json", name, properties.multiprocessors);
}

Card card_with_file(const CardProperties& properties, const fs::path& path) {
  Card card = known_card(properties);
  try {
    const auto text = read_file(path);
    if (!text) return card;
    Document document = parse_document(*text);
    if (!same_card(document.card, properties)) {
      fail(ErrorCode::InvalidArgument, "it is of {} with {} multiprocessors", document.card.name,
           document.card.multiprocessors);
    }
    for (const Constants& c : document.kernels) card.set(c, Origin::measured);
    if (!document.measured.empty()) card.set_measured(std::move(document.measured));
  } catch (const Error& error) {
    log(BATTEN_LOG_WARNING,
        "{} is left alone, {} constants are used instead: {}; `batten tune` writes it anew",
        one_line(path.string()), name_of(card.entries().front().origin), error.what());
  }
  return card;
}

std::shared_ptr<const Card> card_of(const DeviceProperties& device) {
  static auto& mutex = *new std::mutex;
  static auto& cards = *new std::map<std::string, std::shared_ptr<const Card>>;
  const CardProperties properties = card_properties(device);
  const auto path = card_path(properties);
  const std::string key =
      fmt::format("{} {} {} {} {} {}", properties.name, properties.arch, properties.multiprocessors,
                  properties.clock_mhz, properties.memory_gbps, path ? path->string() : "");
  const std::lock_guard lock(mutex);
  auto& card = cards[key];
  if (!card) {
    card = std::make_shared<const Card>(path ? card_with_file(properties, *path)
                                             : known_card(properties));
  }
  return card;
}

}  // namespace batten::impl::cost
