#include "support/suggest.hpp"

#include <algorithm>
#include <cctype>
#include <limits>

#include "io/text.hpp"

namespace batten::tools {
namespace {

constexpr std::size_t kNotMeant = std::numeric_limits<std::size_t>::max();

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// How far `candidate` is from being the tensor `name`; both in lower case.
std::size_t tensor_distance(const std::string& name, const std::string& candidate) {
  if (candidate == name) return 0;
  std::size_t start = 0;
  for (;;) {  // a part between '.', '_' or '/'
    const std::size_t end = candidate.find_first_of("._/", start);
    if (candidate.substr(start, end - start) == name) return 1;
    if (end == std::string::npos) break;
    start = end + 1;
  }
  if (candidate.starts_with(name)) return 2;
  const std::size_t distance = io::edit_distance(name, candidate);
  return distance <= name.size() / 3 ? 2 + distance : kNotMeant;
}

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = io::edit_distance(lower(word), lower(candidate));
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string nearest_tensor(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = kNotMeant;
  for (const std::string& candidate : known) {
    const std::size_t distance = tensor_distance(lower(name), lower(candidate));
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace batten::tools
