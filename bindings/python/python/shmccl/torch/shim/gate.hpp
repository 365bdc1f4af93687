// Forks, threads, and the end of the interpreter: what this process still is.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "table.hpp"

namespace shim {

// How many forks have led to this process: quicker to ask than for its number.
inline std::atomic<int> forks{0};

// Held while a thread is started, and by a fork: glibc frees memory of earlier threads when it starts one, and a child
// that was forked meanwhile frees it once more. Never destroyed, and a child gets one of its own.
inline std::mutex* starting = new std::mutex();

// Nothing in here calls the engine, also where it throws: a fork may have the engine's lock already.
template <class Body>
void start_thread(Body body) {
  const std::lock_guard<std::mutex> lock(*starting);
  std::thread(std::move(body)).detach();
}

// Counts what threads are in the midst of.
class Inside {
 public:
  void enter() { count_++; }
  void leave() {
    if (--count_ > 0 || !is_awaited_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    left_.notify_all();
  }

  // Waits a moment until all have left.
  void settle() {
    is_awaited_ = true;
    std::unique_lock<std::mutex> lock(mutex_);
    left_.wait_for(lock, kPatience, [&] { return count_ <= 0; });
  }

 private:
  static constexpr milliseconds kPatience{1000};

  std::atomic<int> count_{0};
  std::atomic<bool> is_awaited_{false};
  std::mutex mutex_;
  std::condition_variable left_;
};

// Says whether threads may use what is Python's. Past the end of the interpreter, whoever takes its lock is ended in the
// midst of C++, which aborts the process. The last reference but one to a tensor takes that lock, too.
class Gate {
 public:
  // Keeps the interpreter's end waiting, unless that has come.
  class Pass {
   public:
    explicit Pass(Gate& gate) : gate_(gate) {
      gate_.inside_.enter();
      is_given_ = !gate_.is_shut_;
    }
    ~Pass() { gate_.inside_.leave(); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    explicit operator bool() const { return is_given_; }

   private:
    Gate& gate_;
    bool is_given_;
  };

  // Gives no pass any more, and waits a moment for those that were given. Other threads of the program that have called
  // may be on their way back: they come to `hold`, if they get the lock of the interpreter now.
  void shut() {
    shut_by_ = std::this_thread::get_id();
    is_shut_ = true;
    inside_.settle();
    if (has_others_) std::this_thread::sleep_for(kWayBack);
  }

  // Keeps a thread that would go back to an interpreter that has ended. The process ends without it.
  void hold() {
    const auto here = std::this_thread::get_id();
    if (here != first_ && !has_others_.load(std::memory_order_relaxed)) has_others_ = true;
    if (!is_shut_.load(std::memory_order_relaxed) || here == shut_by_) return;
    // A thread that holds the lock of the interpreter gives it up: the end of the interpreter waits for that.
    if (Py_IsInitialized() && PyGILState_Check()) PyEval_SaveThread();
    for (;;) ::pause();
  }

 private:
  static constexpr milliseconds kWayBack{30};

  const std::thread::id first_ = std::this_thread::get_id();
  Inside inside_;
  std::atomic<bool> is_shut_{false}, has_others_{false};
  std::thread::id shut_by_;
};

// Never destroyed: threads use it to the end of the process. A child of a fork gets one of its own.
inline Gate* gate = new Gate();

// Goes back to the program where there is still one.
struct Return {
  ~Return() { gate->hold(); }
};

// Drops what may be Python's, or leaves it where it is.
template <class Value>
void drop(Value value) {
  const Gate::Pass pass(*gate);
  if (pass) Value(std::move(value));
  else new Value(std::move(value));
}

}  // namespace shim
