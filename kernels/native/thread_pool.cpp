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

// What there is to take, in one word: a late worker that asks for a part of a round which is over
// gets a number beyond its end, and touches nothing else of it.
struct Ticket {
  static constexpr int BITS = 24;
  static constexpr uint64_t MASK = (1 << BITS) - 1;

  static uint64_t of(uint64_t round, int num_parts) {
    return round << 2 * BITS | (uint64_t)num_parts << BITS;
  }
  static uint64_t round(uint64_t word) { return word >> 2 * BITS; }
  static int num_parts(uint64_t word) { return word >> BITS & MASK; }
  static int next(uint64_t word) { return word & MASK; }
};

class ThreadPool {
 public:
  void resize(int num_threads) {
    for (int i = (int)workers_.size() + 1; i < num_threads; i++) {
      const uint64_t round = Ticket::round(ticket_.load());
      workers_.emplace_back([this, i, round] { work(i, round); });
      workers_.back().detach();  // they end with the process
    }
    num_threads_ = num_threads;
  }

  int num_threads() const { return num_threads_; }

  void run(int num_parts, const std::function<void(int)> &part) {
    if (num_parts == 1 || num_threads_ == 1) {
      for (int i = 0; i < num_parts; i++) part(i);
      return;
    }
    std::lock_guard<std::mutex> one_at_a_time(busy_);
    part_ = &part;
    num_done_.store(0, std::memory_order_relaxed);
    ticket_.store(Ticket::of(Ticket::round(ticket_.load()) + 1, num_parts));
    if (sleeping_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    take_parts();
    // For the parts that workers took, and no worker that took none: one that sleeps or has no core
    // would be waited for at every op.
    for (int i = 0; num_done_.load(std::memory_order_acquire) < num_parts; i++) {
      if (i < SPINS) pause_briefly();
      else std::this_thread::yield();  // somebody else has the core that a worker needs
    }
  }

 private:
  void take_parts() {
    for (;;) {
      const uint64_t taken = ticket_.fetch_add(1);
      if (Ticket::next(taken) >= Ticket::num_parts(taken)) return;
      (*part_)(Ticket::next(taken));  // the round can not end before this part has
      num_done_.fetch_add(1, std::memory_order_release);
    }
  }

  void work(int index, uint64_t seen) {
    for (;;) {
      seen = await_round(seen);
      if (index < num_threads_.load(std::memory_order_relaxed)) take_parts();
    }
  }

  // The round that there is now, which is another one than `seen`.
  uint64_t await_round(uint64_t seen) {
    for (int i = 0; i < SPINS; i++) {
      const uint64_t round = Ticket::round(ticket_.load(std::memory_order_acquire));
      if (round != seen) return round;
      pause_briefly();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return Ticket::round(ticket_.load()) != seen; });
    sleeping_.fetch_sub(1);
    return Ticket::round(ticket_.load());
  }

  std::vector<std::thread> workers_;
  std::atomic<int> num_threads_{1};
  std::mutex busy_, mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int> sleeping_{0}, num_done_{0};
  const std::function<void(int)> *part_ = nullptr;
};

// Never destroyed: its threads may still look at it while the process ends.
ThreadPool &pool = *new ThreadPool;

}  // namespace

void run_parts(int num_parts, const std::function<void(int)> &part) { pool.run(num_parts, part); }

int num_threads() { return pool.num_threads(); }

extern "C" void segue_set_num_threads(int num_threads) { pool.resize(num_threads); }
