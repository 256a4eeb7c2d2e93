#include "thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr int SPINS = 4000;  // some tens of microseconds

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class ThreadPool {
 public:
  void resize(int num_threads) {
    for (int i = (int)workers_.size() + 1; i < num_threads; i++) {
      const int64_t round = round_.load();
      workers_.emplace_back([this, i, round] { work(i, round); });
      workers_.back().detach();  // they end with the process
    }
    num_threads_ = num_threads;
  }

  int num_threads() const { return num_threads_; }

  void run(int num_parts, const std::function<void(int)> &part) {
    const int helpers = std::min(num_threads_, num_parts) - 1;
    if (helpers <= 0) {
      for (int i = 0; i < num_parts; i++) part(i);
      return;
    }
    std::lock_guard<std::mutex> one_at_a_time(busy_);
    part_ = &part;
    num_parts_ = num_parts;
    num_helpers_ = helpers;
    next_.store(0, std::memory_order_relaxed);
    running_.store((int)workers_.size(), std::memory_order_relaxed);
    round_.fetch_add(1);
    if (sleeping_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    take_parts();
    for (int i = 0; running_.load(std::memory_order_acquire) > 0; i++) {
      if (i < SPINS) pause_briefly();
      else std::this_thread::yield();  // somebody else has the core that a worker needs
    }
  }

 private:
  void take_parts() {
    for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < num_parts_;) (*part_)(i);
  }

  void work(int index, int64_t seen) {
    for (;; seen++) {
      await_round(seen);
      if (index <= num_helpers_) take_parts();
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  void await_round(int64_t seen) {
    for (int i = 0; i < SPINS; i++) {
      if (round_.load(std::memory_order_acquire) != seen) return;
      pause_briefly();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return round_.load() != seen; });
    sleeping_.fetch_sub(1);
  }

  std::vector<std::thread> workers_;
  int num_threads_ = 1;
  std::mutex busy_, mutex_;
  std::condition_variable wake_;
  std::atomic<int64_t> round_{0};
  std::atomic<int> sleeping_{0}, running_{0}, next_{0};
  const std::function<void(int)> *part_ = nullptr;
  int num_parts_ = 0, num_helpers_ = 0;
};

// Never destroyed: its threads may still look at it while the process ends.
ThreadPool &pool = *new ThreadPool;

}  // namespace

void run_parts(int num_parts, const std::function<void(int)> &part) { pool.run(num_parts, part); }

int num_threads() { return pool.num_threads(); }

extern "C" void segue_set_num_threads(int num_threads) { pool.resize(num_threads); }
