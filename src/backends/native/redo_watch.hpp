// Lazy softmax computes a tile again when its logits leave the range (sm90/consumer.cuh). Online
// softmax never has to, but is slower where lazy softmax works. A plan's watch sees how many tiles
// were computed again, and says when its calls had better be online from the start.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace batten::impl::native {

// The kernels' counts of tiles computed again, on the host: reading them waits for nothing.
// Replays of a graph are counted apart, because nobody tells how many tiles they have.
struct RedoCounts {
  std::uint64_t of_calls = 0;
  std::uint64_t of_graphs = 0;
};

class RedoWatch {
 public:
  // Tiles after which the share is looked at.
  static constexpr std::int64_t kWindow = 4096;
  // A tile costs about 1.4 times as much when it is online, and those that are computed again are
  // not spread evenly over the multiprocessors: from about this share on, lazy softmax loses.
  static constexpr double kMostRedone = 0.125;

  // `counts` outlives the watch; kernels write to it at any time.
  RedoWatch(RedoCounts& counts, bool may_switch);

  // Whether calls are to be online. Once true, always true. All members may be called from any
  // thread.
  bool online() const;

  // The same, for a call of so many tiles that is about to be launched.
  bool call(std::int64_t tiles);

  // For the receipt: "" while no tile was computed again.
  std::string remark() const;

 private:
  RedoCounts& counts_;
  const RedoCounts before_;  // what the counts began with
  const bool may_switch_;

  mutable std::mutex mutex_;  // guards what follows
  bool online_ = false;
  std::int64_t tiles_ = 0;         // of the calls so far, until online
  std::int64_t window_tiles_ = 0;  // of the window
  std::uint64_t window_redone_;    // count at the window's beginning
};

}  // namespace batten::impl::native
