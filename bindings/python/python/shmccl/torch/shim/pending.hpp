// The work of one operation, or of several that were put together.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "connection.hpp"
#include "steps.hpp"

namespace shim {

class Pending : public Work {
 public:
  Pending(ConnectionPtr connection, Job job, uint64_t sequence, milliseconds timeout)
      : Work(connection->rank(), job.type), connection_(std::move(connection)), job_(std::move(job)), sequence_(sequence),
        timeout_(bounded(bounded(timeout) + milliseconds(connection_->report().extra.exchange(0)))), timed_(connection_->report().timed) {
    if (!job_.after.empty()) after_state_ = std::make_unique<at::ThreadLocalState>();
  }

  ~Pending() override {
    for (auto request : requests_) table->RequestFree(request);
  }

  Job& job() { return job_; }

  // Has a time-out name all ranks that were late, and not the first of them.
  void name_all() { names_all_ = true; }

  // Begins all parts, behind each other where the caller waits for them.
  void begin(bool is_async) {
    const Return back;
    const Callers::Wait waits;
    if (caller_) caller_->operations++;
    connection_->report().pending++;
    try {
      connection_->ensure(job_.operation);
      for (const auto& step : job_.steps) {
        if (connection_->alone()) run_alone(step);
        else if (step.is_message) queue(connection_->messages(job_.operation), step.call);
        else if (is_async || has_own_deadline()) queue(connection_->collectives(job_.operation), step.call);
        else check(table->Submit(connection_->collectives(job_.operation), &step.call, 1, nullptr, nullptr, nullptr));
      }
    } catch (...) {
      part_ended({});
      throw;
    }
    part_ended({});
    if (!is_async) wait(milliseconds(0));
  }

  // Called by the engine at the end of a part.
  static void ended(void* self, shmcclResult_t code, const char* text, int rank) {
    const Gate::Pass pass(*gate);
    const bool was_within = std::exchange(within_callback, true);
    auto* work = static_cast<Pending*>(self);
    const Ending ending(work->connection_->endings());
    if (pass) c10::intrusive_ptr<Pending>::reclaim(work)->part_ended({code, text ? text : "", rank});
    else work->leave();
    within_callback = was_within;
  }

  // The first time it only looks: torch's flight recorder asks as each call returns, and what it would make the worker
  // begin, a wait takes over at less cost. The worker begins what nobody waits for in any case.
  bool isCompleted() override {
    if (is_polled_.exchange(true)) advance();
    return is_done();
  }

  bool isSuccess() const override { return is_done() && !failure_; }
  std::exception_ptr exception() const override { return is_done() && failure_ ? error() : nullptr; }

  int sourceRank() const override {
    int source = -1;
    const auto begun = requests();
    TORCH_CHECK(!begun.empty(), "shmccl: ", job_.operation, " has no source rank");
    const auto code = table->RequestSource(begun[0], &source);
    if (code != shmcclSuccess) connection_->fail(Failure::of(code), job_.operation);
    return source;
  }

  Tensors result() override {
    TORCH_CHECK(is_done(), "shmccl: ", job_.operation, " has not ended: its result is there after wait()");
    return job_.outputs;
  }

  void synchronize() override { wait(milliseconds(0)); }

  bool wait(milliseconds timeout) override {
    const Return back;
    const Callers::Wait waits;
    timeout = timeout.count() < 0 ? milliseconds(0) : bounded(timeout);
    await(timeout);
    await_callbacks(timeout);
    if (c10d::allow_inflight_collective_as_graph_input()) {
      c10d::unregister_work(c10::intrusive_ptr<Work>::reclaim_copy(this));
    }
    if (failure_) std::rethrow_exception(error());
    return true;
  }

  void abort() override { connection_->revoke(); }

  FuturePtr getFuture() override { return future(future_, c10::ListType::create(c10::TensorType::get())); }
  FuturePtr getFutureResult() override { return future(result_, c10::IntType::get()); }

  float getDuration() const override {
    TORCH_CHECK(timed_ && is_done(), "shmccl: ", job_.operation, " was not timed; call _enable_collectives_timing() before it");
    return duration_ms_;
  }

  bool is_timed() const { return timed_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  // Torch before 2.14 does not ask.
  milliseconds getTimeout() const { return timeout_; }
  std::shared_ptr<c10d::WorkInfo> info() const {
    const std::chrono::duration<float> taken(duration_ms_ / 1000);
    return std::make_shared<c10d::WorkInfo>(retrieveOpType(), sequence_, started_, steady_clock::now(), taken);
  }
  uint64_t getCompletionKey() const { return key_; }

 private:
  void advance() {
    int is_over = 0;
    for (auto request : requests()) table->RequestTest(request, &is_over);
  }

  // Queues a part; the engine keeps this object until it has ended.
  void queue(shmcclComm_t comm, const shmcclCall_t& call) {
    std::unique_lock<std::mutex> lock(mutex_);
    parts_++;
    lock.unlock();
    auto* self = c10::intrusive_ptr<Pending>::reclaim_copy(this).release();
    shmcclRequest_t request = nullptr;
    const auto code = table->Submit(comm, &call, 1, &Pending::ended, self, &request);
    if (code != shmcclSuccess) ended(self, code, table->GetLastError(nullptr), -1);
    check(code);
    lock.lock();
    requests_.push_back(request);
  }

  void check(shmcclResult_t code) {
    if (code == shmcclSuccess) return;
    auto failure = connection_->naming_all(Failure::of(code));
    std::unique_lock<std::mutex> lock(mutex_);
    failure_ = std::move(failure);
    lock.unlock();
    connection_->fail(failure_, job_.operation);
  }

  // Whether its deadline is another than that of the engine's operations.
  bool has_own_deadline() const { return names_all_ || timeout_ != connection_->timeout(); }

  void part_ended(Failure failure) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (failure && !failure_) failure_ = std::move(failure);
      if (--parts_ > 0) return;
    }
    finish();
  }

  std::exception_ptr error() const {
    try {
      connection_->fail(failure_, job_.operation);
    } catch (...) {
      return std::current_exception();
    }
  }

  // Waits until the operation has ended, or throws where that does not come within `timeout` (0: its own). Past its own
  // timeout the operation is ended for all ranks, as the engine does past its own.
  void await(milliseconds timeout) {
    if (is_done()) return;
    const auto begun = requests();
    TORCH_CHECK(!begun.empty(), "shmccl: ", job_.operation, " was put together with others; end the coalescing block first");
    const bool is_own = timeout.count() == 0;
    const bool is_bounded = !is_own || has_own_deadline();
    const auto deadline = deadline_of(timeout);
    for (auto request : begun) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now()).count();
      const auto code = table->RequestWait(request, is_bounded ? static_cast<uint64_t>(std::max<int64_t>(left, 1)) : 0);
      if (code == shmcclInterrupted) raise_interrupt();
      if (code != shmcclInProgress) continue;
      const auto late = connection_->stragglers();
      if (is_own) end_all(late);
      connection_->fail_late(is_own ? timeout_ : timeout, late, job_.operation);
    }
    // The thread that has executed it is about to say so.
    std::unique_lock<std::mutex> lock(mutex_);
    cv_.wait(lock, [&] { return done_; });
  }

  steady_clock::time_point deadline_of(milliseconds timeout) const {
    return timeout.count() == 0 ? started_ + timeout_ : steady_clock::now() + timeout;
  }

  // Waits until callbacks have been called, as a program is used to, but past no deadline. A callback waits for none.
  void await_callbacks(milliseconds timeout) {
    if (Callers::here > 0) return;
    std::unique_lock<std::mutex> lock(mutex_);
    if (is_told_) return;
    lock.unlock();
    std::optional<py::gil_scoped_release> unlocked;
    if (PyGILState_Check()) unlocked.emplace();
    lock.lock();
    await_change(lock, cv_, [&] { return is_told_; }, deadline_of(timeout));
  }

  // Ends the operation for all ranks, past its own timeout.
  void end_all(const std::vector<int>& late) {
    shmcclResult_t none = shmcclSuccess;
    connection_->report().failed.compare_exchange_strong(none, shmcclTimeout);
    connection_->revoke_awaiting(late);
  }

  bool is_done() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  std::vector<shmcclRequest_t> requests() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }

  // Does what is left to do, as if the thread that has begun the operation did it.
  void act() {
    if (failure_ || job_.after.empty()) return;
    const at::ThreadLocalStateGuard state(*after_state_);
    try {
      for (auto& action : job_.after) action();
    } catch (const std::exception& error) {
      failure_ = {shmcclInternalError, error.what()};
    }
  }

  // Ends past the end of the interpreter: all that it has stays.
  void leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = {shmcclInvalidUsage, "the interpreter has ended"};
    done_ = true;
    cv_.notify_all();
  }

  void finish() {
    act();
    std::unique_lock<std::mutex> lock(mutex_);
    duration_ms_ = std::chrono::duration<float, std::milli>(steady_clock::now() - started_).count();
    const Tensors kept = std::move(job_.kept);
    const Actions after = std::move(job_.after);
    const std::array<FuturePtr, 2> futures{future_, result_};
    auto& report = connection_->report();
    const bool is_hooked = report.heard && !failure_;
    const bool has_callbacks = is_hooked || future_ || result_;
    is_told_ = !has_callbacks;
    done_ = true;
    cv_.notify_all();
    lock.unlock();
    if (caller_) caller_->operations--;
    shmcclResult_t none = shmcclSuccess;
    if (failure_) report.failed.compare_exchange_strong(none, failure_.code);
    else if (report.hooked) report.call(report.on_success, *this);
    if (!is_hooked) count_out(report);
    if (!has_callbacks) return;
    Telling telling{std::make_shared<Ending>(connection_->endings()), c10::intrusive_ptr<Pending>::reclaim_copy(this)};
    callers->call(lane_, [telling = std::move(telling), futures, is_hooked] { telling.work->tell(futures, is_hooked); });
  }

  // A work that calls what the program has given. The work is dropped first.
  struct Telling {
    std::shared_ptr<Ending> ending;
    c10::intrusive_ptr<Pending> work;
  };

  // Calls what the program has given, on a thread of `Callers`.
  void tell(const std::array<FuturePtr, 2>& futures, bool is_hooked) {
    auto& report = connection_->report();
    if (is_hooked) {
      report.call(report.on_completion, *this);
      count_out(report);
    }
    std::optional<at::ThreadLocalStateGuard> state;
    if (callback_state_) state.emplace(*callback_state_);
    for (const auto& future : futures) call_hook([&] { resolve(future); });
    state.reset();
    std::lock_guard<std::mutex> lock(mutex_);
    is_told_ = true;
    cv_.notify_all();
  }

  static void count_out(Report& report) {
    if (--report.pending > 0) return;
    std::lock_guard<std::mutex> lock(report.mutex);
    report.idle.notify_all();
  }

  // The future in `slot`, which is made at the first request.
  FuturePtr future(FuturePtr& slot, c10::TypePtr type) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (slot) return slot;
    auto made = slot = c10::make_intrusive<c10::ivalue::Future>(std::move(type));
    const bool is_done = done_;
    if (!is_done && !callback_state_) callback_state_ = std::make_unique<at::ThreadLocalState>();
    lock.unlock();
    if (is_done) resolve(made);
    // Waiting for a future does not take the operation over: the worker is told to begin.
    else advance();
    return made;
  }

  void resolve(const FuturePtr& future) {
    if (!future) return;
    if (future->elementType()->kind() == c10::TypeKind::IntType) {
      auto result = c10d::WorkResult::SUCCESS;
      if (failure_) result = failure_.code == shmcclTimeout ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
      future->markCompleted(c10::IValue(static_cast<int64_t>(result)));
    } else if (failure_) {
      future->setErrorIfNeeded(error());
    } else {
      future->markCompleted(c10::IValue(job_.outputs));
    }
  }

  const ConnectionPtr connection_;
  Job job_;
  const uint64_t sequence_;
  static inline std::atomic<uint64_t> keys_{0};
  const uint64_t key_ = ++keys_;
  const milliseconds timeout_;
  bool names_all_ = false;
  const bool timed_;
  const steady_clock::time_point started_ = steady_clock::now();
  float duration_ms_ = 0;

  std::atomic<bool> is_polled_{false};
  // Beginning them counts as a part.
  int parts_ = 1;
  bool done_ = false;
  // Whether all that the program has given was called.
  bool is_told_ = true;
  const unsigned lane_ = Callers::here;
  const std::shared_ptr<Callers::Running> caller_ = Callers::running;
  Failure failure_;
  std::vector<shmcclRequest_t> requests_;
  FuturePtr future_, result_;
  // Torch's state of the thread that has begun this, and of the one that has asked for a future.
  std::unique_ptr<at::ThreadLocalState> after_state_, callback_state_;
};

}  // namespace shim
