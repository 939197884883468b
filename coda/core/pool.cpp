// coda/core/pool.cpp: a fork-join pool whose threads join a call while it lasts.
//
// A call is published under one mutex; a thread that wakes takes a seat, and with it a worker
// number, if the call is still open. The caller works too, closes the call when no task is left,
// and waits only for those who have a seat: a thread that wakes late delays nobody.
#include "coda/core/pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>

#include "coda/core/flags.h"

namespace coda {
namespace {

using Body = std::function<void(std::int64_t task, int worker)>;
using Clock = std::chrono::steady_clock;

// Longer than the gap between two kernels, shorter than what a sleeping neighbour would notice.
constexpr auto kSpin = std::chrono::microseconds(50);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until done() or for kSpin; true where done() came.
template <class Done>
bool spin_until(const Done& done) {
  const Clock::time_point end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause();
    }
  } while (Clock::now() < end);
  return false;
}

// One parallel_for: the tasks not taken yet, and the exception of the lowest task that threw.
class Call {
 public:
  Call(const Body& body, std::int64_t tasks) : body_(body), tasks_(tasks) {}

  void work(int worker) {
    for (;;) {
      const std::int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_) return;
      try {
        body_(task, worker);
      } catch (...) {
        // Tasks start in order, so all below this one have started: the lowest that throws is
        // always seen.
        next_.store(tasks_, std::memory_order_relaxed);
        const std::lock_guard lock(mutex_);
        if (task < failed_) {
          failed_ = task;
          error_ = std::current_exception();
        }
      }
    }
  }

  // After everybody's work().
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const Body& body_;
  const std::int64_t tasks_;
  std::atomic<std::int64_t> next_{0};
  std::mutex mutex_;
  std::int64_t failed_ = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr error_;
};

// True on a thread that is inside a task.
thread_local bool inside = false;

class Pool {
 public:
  // False where another call has the pool.
  bool run(Call& call, int threads) {
    const std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    grow(threads - 1);
    {
      const std::lock_guard lock(mutex_);
      call_ = &call;
      seats_ = threads;
      taken_ = 1;
      calls_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    inside = true;
    call.work(0);
    inside = false;
    std::unique_lock<std::mutex> lock(mutex_);
    call_ = nullptr;
    if (working_ > 0) {
      lock.unlock();
      spin_until([&] { return working_.load(std::memory_order_acquire) == 0; });
      lock.lock();
      done_.wait(lock, [&] { return working_ == 0; });
    }
    return true;
  }

 private:
  void grow(int workers) {
    // Where the system refuses a thread, the call makes do with those there are.
    try {
      for (; workers_ < workers; ++workers_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  void serve() {
    inside = true;
    std::uint64_t seen = 0;
    for (;;) {
      const auto changed = [&] {
        return calls_.load(std::memory_order_acquire) != seen;
      };
      spin_until(changed);
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, changed);
      seen = calls_.load(std::memory_order_relaxed);
      if (call_ == nullptr || taken_ == seats_) continue;
      Call& call = *call_;
      const int worker = taken_++;
      ++working_;
      lock.unlock();
      call.work(worker);
      lock.lock();
      // NOTE: the caller may return, and `call` end, as soon as this is zero.
      if (--working_ == 0) done_.notify_one();
    }
  }

  std::mutex turn_;  // held by the thread whose call has the pool
  int workers_ = 0;  // threads started; under turn_

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  Call* call_ = nullptr;  // null: closed
  int seats_ = 0;
  int taken_ = 0;                        // seats taken, the caller's included
  std::atomic<int> working_{0};          // threads in a seat, without the caller
  std::atomic<std::uint64_t> calls_{0};  // changes with every call: what waiting threads watch
};

// NOTE: never destroyed, because its threads outlive main(); and replaced in a forked child, which
// has none of its threads and perhaps a locked mutex.
std::atomic<Pool*> pool{nullptr};

Pool& the_pool() {
  static const bool ready = [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
    return true;
  }();
  static_cast<void>(ready);
  return *pool;
}

}  // namespace

void parallel_for(std::int64_t tasks, int threads, const Body& body) {
  if (threads <= 0) threads = flags::threads();
  threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, threads));
  Call call(body, tasks);
  if (threads == 1 || inside || !the_pool().run(call, threads)) call.work(0);
  call.rethrow();
}

}  // namespace coda
