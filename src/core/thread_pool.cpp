#include "core/thread_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/env.hpp"

namespace batten::impl {
namespace {

// Layers of one model follow each other within microseconds: a worker that has just finished looks
// for the next loop for a while (about 20 us) before it sleeps, because a wake-up costs about as
// much.
constexpr int kSpins = 400;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // As long as x86's pause, more or less; `yield` is over at once on cores of one thread.
  asm volatile("isb" ::: "memory");
#endif
}

// One run_loop call, on its caller's stack.
struct Loop {
  std::int64_t count = 0;
  LoopBody invoke = nullptr;
  void* context = nullptr;
  std::atomic<std::int64_t> next{0};
  std::atomic<int> helpers{0};  // workers inside; changed under the pool's mutex

  // Guarded by the pool's mutex.
  int open_slots = 0;  // workers that may still join
  int next_slot = 1;   // 0 is the caller's
  std::exception_ptr error;
  std::condition_variable left;

  // Takes iterations until none is left; gives what an iteration threw.
  std::exception_ptr work(int slot) noexcept {
    try {
      for (;;) {
        const std::int64_t index = next.fetch_add(1, std::memory_order_relaxed);
        if (index >= count) return nullptr;
        invoke(context, index, slot);
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      return std::current_exception();
    }
  }
};

class ThreadPool {
 public:
  void run(Loop& loop, int helpers) {
    int asleep = 0;
    {
      const std::lock_guard lock(mutex_);
      start_workers(helpers);
      loop.open_slots = std::min(helpers, num_workers_);
      if (loop.open_slots > 0) {
        loops_.push_back(&loop);
        waiting_.fetch_add(1, std::memory_order_relaxed);
      }
      asleep = std::min(loop.open_slots, sleepers_);
    }
    for (int i = 0; i < asleep; ++i) wake_.notify_one();

    std::exception_ptr error = loop.work(0);

    for (int i = 0; i < kSpins && loop.helpers.load(std::memory_order_relaxed) > 0; ++i) {
      pause_briefly();
    }
    std::unique_lock lock(mutex_);
    close(loop);
    loop.left.wait(lock, [&] { return loop.helpers.load(std::memory_order_relaxed) == 0; });
    if (!error) error = loop.error;
    lock.unlock();
    if (error) std::rethrow_exception(error);
  }

 private:
  // Fewer workers than asked for is fine: the caller takes the iterations that nobody takes.
  void start_workers(int wanted) {
    while (num_workers_ < wanted) {
      try {
        std::thread([this] { worker(); }).detach();
      } catch (const std::system_error&) {
        return;
      }
      ++num_workers_;
    }
  }

  // No worker joins from here on.
  void close(Loop& loop) {
    if (loop.open_slots == 0) return;
    loop.open_slots = 0;
    std::erase(loops_, &loop);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }

  void worker() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (loops_.empty()) {
        lock.unlock();
        for (int i = 0; i < kSpins && waiting_.load(std::memory_order_relaxed) == 0; ++i) {
          pause_briefly();
        }
        lock.lock();
        ++sleepers_;
        wake_.wait(lock, [&] { return !loops_.empty(); });
        --sleepers_;
      }
      Loop& loop = *loops_.front();
      const int slot = loop.next_slot++;
      loop.helpers.fetch_add(1, std::memory_order_relaxed);
      if (loop.open_slots == 1) {
        close(loop);
      } else {
        --loop.open_slots;
      }

      lock.unlock();
      std::exception_ptr error = loop.work(slot);
      lock.lock();

      if (error && !loop.error) loop.error = std::move(error);
      // The caller reads the results after it has taken the mutex, and leaves `loop` only then.
      if (loop.helpers.fetch_sub(1, std::memory_order_relaxed) == 1) loop.left.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Loop*> loops_;     // that have open slots
  std::atomic<int> waiting_{0};  // loops_.size(), for a look without the mutex
  int num_workers_ = 0;
  int sleepers_ = 0;
};

// Never destroyed: workers may outlive static destruction. A forked child has no workers, and
// perhaps a locked mutex, so it gets a pool of its own.
std::atomic<ThreadPool*> the_pool{nullptr};

ThreadPool& pool() {
  static const bool created = [] {
    the_pool.store(new ThreadPool);
    pthread_atfork(nullptr, nullptr, [] { the_pool.store(new ThreadPool); });
    return true;
  }();
  (void)created;
  return *the_pool.load(std::memory_order_acquire);
}

}  // namespace

int available_cpus() {
  // A mask of fixed size fails on machines with more than 1024 CPUs, so it grows until it fits.
  for (int cpus = CPU_SETSIZE; cpus <= (1 << 20); cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(cpus));
    if (set == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
    const bool known = sched_getaffinity(0, size, set) == 0;
    const int count = known ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0) return std::min(count, kMaxThreads);
  }
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

int default_num_threads() {
  const auto threads = environment_int("BATTEN_NUM_THREADS", 1, kMaxThreads);
  return threads ? static_cast<int>(*threads) : available_cpus();
}

void run_loop(std::int64_t count, int num_threads, LoopBody invoke, void* context) {
  if (num_threads > kMaxThreads) num_threads = kMaxThreads;
  if (num_threads > count) num_threads = static_cast<int>(count);
  if (num_threads <= 1) {
    for (std::int64_t i = 0; i < count; ++i) invoke(context, i, 0);
    return;
  }
  Loop loop;
  loop.count = count;
  loop.invoke = invoke;
  loop.context = context;
  pool().run(loop, num_threads - 1);
}

}  // namespace batten::impl
