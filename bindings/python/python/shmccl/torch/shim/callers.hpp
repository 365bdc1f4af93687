// Threads for functions of the program.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "failure.hpp"

namespace shim {

// Calls functions of the program, such as callbacks of futures, on threads on which nothing else depends.
//
// Functions of one lane are called one after the other, so that those of all ranks make their operations in one order.
// A function may wait for operations that it makes itself: these end on the next lane. One that computes keeps its turn,
// however long that takes. Where one waits for anything else, its lane goes on after a second, on another thread; and
// after five, where it polls, or operations are under way that it has begun or waits for: lanes of other ranks may hold them up.
class Callers {
 public:
  // A function that is being called.
  struct Running {
    const pid_t thread = static_cast<pid_t>(::syscall(SYS_gettid));
    // How many of its operations have not ended, and in how many calls that wait for operations it is.
    std::atomic<int> operations{0}, waits{0};
  };

  // Says that the function on this thread, if any, waits for operations.
  class Wait {
   public:
    Wait() { if (running_) running_->waits++; }
    ~Wait() { if (running_) running_->waits--; }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Running* const running_ = running.get();
  };

  // The lane of what is made on this thread, and the function that makes it.
  static inline thread_local unsigned here = 0;
  static inline thread_local std::shared_ptr<Running> running;

  void call(unsigned number, std::function<void()> function) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto& lane = lanes_[number];
    lane.functions.push_back(std::move(function));
    provide(lane, number);
    // Without a thread, this one has to do.
    while (lane.threads == 0 && !lane.functions.empty()) call_next(lane, number, lock);
  }

 private:
  struct Lane {
    std::deque<std::function<void()>> functions;
    // How many threads serve it, and how many of them are in a function.
    int threads = 0, calling = 0;
    // The number of the function that the next one waits for, or 0, and that of the last one.
    uint64_t awaited = 0, last = 0;
    // The function that the next one waits for.
    std::shared_ptr<Running> running;
    std::condition_variable changed;
  };

  // How long a thread waits for a function.
  static constexpr milliseconds kIdle{2000};

  // Says when a function that is being called gives up its turn. It is looked at from time to time.
  class Turn {
   public:
    static constexpr milliseconds kLook{50};

    explicit Turn(std::shared_ptr<Running> running) : running_(std::move(running)) {}

    bool is_over() {
      const auto now = steady_clock::now();
      const auto use = Use::of(running_->thread);
      const bool sleeps = !use.is_known || use.sleeps;
      const bool has_operations = running_->operations > 0 || running_->waits > 0;
      // A thread that waits for the lock of the interpreter wakes every few milliseconds: it is no sleeper.
      if (!sleeps || use.time != time_ || has_operations) asleep_since_ = now;
      // A thread that polls may be seen awake now and then.
      const bool is_busy = running_->waits == 0 && (!sleeps || use.time - time_ > kLook / 10);
      idle_looks_ = is_busy ? std::max(idle_looks_ - 4, 0) : idle_looks_ + 1;
      time_ = use.time;
      return now - asleep_since_ >= kTurn || idle_looks_ >= kLongTurn / kLook;
    }

   private:
    static constexpr milliseconds kTurn{1000}, kLongTurn{5000};

    // Whether a thread sleeps, and how long it has computed. Where the system does not say, all threads sleep, and none has.
    struct Use {
      bool is_known = false, sleeps = false;
      std::chrono::nanoseconds time{0};

      static Use of(pid_t thread) {
        const auto folder = "/proc/self/task/" + std::to_string(thread);
        std::ifstream status(folder + "/stat"), times(folder + "/schedstat");
        std::string text;
        uint64_t time = 0;
        std::getline(status, text);
        const auto name_end = text.rfind(") ");
        if (name_end == std::string::npos || name_end + 2 >= text.size()) return {};
        times >> time;
        return {true, text[name_end + 2] == 'S', std::chrono::nanoseconds(time)};
      }
    };

    const std::shared_ptr<Running> running_;
    steady_clock::time_point asleep_since_ = steady_clock::now();
    std::chrono::nanoseconds time_{0};
    int idle_looks_ = 0;
  };

  // Sees to a thread that is in no function. The caller holds the lock.
  void provide(Lane& lane, unsigned number) {
    if (lane.threads > lane.calling) {
      lane.changed.notify_one();
      return;
    }
    try {
      start_thread([this, number] { serve(number); });
      lane.threads++;
    } catch (const std::system_error&) {
      // The threads that are there go on, later.
    }
  }

  void serve(unsigned number) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto& lane = lanes_[number];
    while (lane.changed.wait_for(lock, kIdle, [&] { return !lane.functions.empty(); })) {
      if (lane.awaited && !await_turn(lane, lock)) continue;
      call_next(lane, number, lock);
    }
    lane.threads--;
  }

  // Waits until the function that is being called has ended, or has given up its turn. Says whether it did the latter,
  // and there is a next one.
  static bool await_turn(Lane& lane, std::unique_lock<std::mutex>& lock) {
    const auto awaited = lane.awaited;
    Turn turn(lane.running);
    do {
      if (lane.changed.wait_for(lock, Turn::kLook, [&] { return lane.awaited != awaited; })) return false;
    } while (!turn.is_over());
    return !lane.functions.empty();
  }

  void call_next(Lane& lane, unsigned number, std::unique_lock<std::mutex>& lock) {
    const auto own = lane.awaited = ++lane.last;
    const auto called = lane.running = std::make_shared<Running>();
    auto function = std::move(lane.functions.front());
    lane.functions.pop_front();
    lane.calling++;
    if (!lane.functions.empty()) provide(lane, number);
    lock.unlock();
    call_here(std::move(function), number + 1, called);
    lock.lock();
    lane.calling--;
    if (lane.awaited == own) lane.awaited = 0;
    lane.changed.notify_all();
  }

  // Calls a function, and drops it before the pass is given back.
  static void call_here(std::function<void()> function, unsigned next, std::shared_ptr<Running> called) {
    const Gate::Pass pass(*gate);
    if (!pass) {
      new std::function<void()>(std::move(function));
      return;
    }
    const auto before = std::exchange(here, next);
    const auto running_before = std::exchange(running, std::move(called));
    call_hook(function);
    function = nullptr;
    here = before;
    running = running_before;
  }

  std::mutex mutex_;
  std::map<unsigned, Lane> lanes_;
};

// Never destroyed, and a child of a fork gets one of its own, as for the gate.
inline Callers* callers = new Callers();

}  // namespace shim
