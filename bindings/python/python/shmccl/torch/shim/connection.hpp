// One meeting of the ranks, with its two communicators.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "callers.hpp"
#include "report.hpp"

namespace shim {

// What ranks that have found each other know of their meeting: its id, and the process of each rank.
struct Meeting {
  std::string id;
  std::vector<std::string> processes;
};

struct ConnectionOptions {
  std::string name;
  int rank;
  int size;
  milliseconds timeout;
  // The number of each rank in the default group, if that is known.
  std::vector<uint64_t> global_ranks;
};

// Copies a text into the bytes of the engine's, which end with a zero.
template <class Target>
Target as_bytes(const std::string& text) {
  Target target{};
  std::memcpy(target.internal, text.data(), std::min(text.size(), sizeof target.internal - 1));
  return target;
}

// Says that a thread is about to drop an operation of a connection, with what the operation holds.
class Ending {
 public:
  explicit Ending(std::shared_ptr<Inside> endings) : endings_(std::move(endings)) { endings_->enter(); }
  ~Ending() { endings_->leave(); }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

 private:
  const std::shared_ptr<Inside> endings_;
};

// Whether the engine is in a callback on this thread.
inline thread_local bool within_callback = false;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(ConnectionOptions options) : options_(std::move(options)), timeout_(bounded(options_.timeout)) {}

  ~Connection() {
    // A child of a fork is not here.
    if (!is_here() || !collectives_) return;
    const auto leave = [messages = messages_, collectives = collectives_] {
      table->CommDestroy(messages);
      table->CommDestroy(collectives);
    };
    if (!within_callback) {
      leave();
      return;
    }
    // It would wait for the operation that the callback is of. Without a thread the communicators stay.
    try {
      start_thread(leave);
    } catch (const std::system_error&) {
    }
  }

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  const std::string& name() const { return options_.name; }
  milliseconds timeout() const { return timeout_; }
  Report& report() { return report_; }
  const std::shared_ptr<Inside>& endings() const { return endings_; }
  // How much lies in the heap, and how many tensors found no room there.
  std::atomic<uint64_t> heap_bytes{0}, heap_tensors{0}, ordinary_tensors{0};
  bool alone() const { return options_.size == 1; }
  bool is_here() const { return forks_ == forks; }

  std::string describe(const char* operation) const {
    const auto number = global_rank(rank());
    const auto global = number ? " (global rank " + std::to_string(*number) + ")" : "";
    return std::string(operation) + " on rank " + std::to_string(rank()) + global + " of group '" + name() + "'";
  }

  // Raises what has happened to an operation. The engine names ranks as the group numbers them.
  [[noreturn]] void fail(Failure failure, const char* operation) const {
    if (const auto number = global_rank(failure.rank)) {
      failure.text += " (rank " + std::to_string(failure.rank) + " of the group is global rank " + std::to_string(*number) + ")";
    }
    raise(failure, describe(operation));
  }

  // Meets the other ranks. It does so in a thread of its own: no rank waits for others before it needs them.
  void start(const Meeting& meeting) {
    state_ = alone() ? State::ready : State::meeting;
    if (alone()) return;
    start_thread([self = shared_from_this(), meeting]() mutable {
      self->run(meeting);
      drop(std::move(self));
    });
  }

  // Waits until the ranks have met.
  void ensure(const char* operation) {
    if (state_.load(std::memory_order_acquire) == State::ready && is_here()) return;
    TORCH_CHECK(is_here(), "shmccl: ", operation, ": a child of a fork is not the rank; start it with spawn");
    std::optional<py::gil_scoped_release> unlocked;
    if (PyGILState_Check()) unlocked.emplace();
    std::unique_lock<std::mutex> lock(mutex_);
    await_change(lock, changed_, [&] { return state_ != State::meeting; });
    if (state_ == State::failed) fail(failure_, operation);
    TORCH_CHECK(state_ != State::idle, "shmccl: ", operation, ": group '", name(), "' has no members before reconfigure() is called");
    TORCH_CHECK(state_ != State::closed, "shmccl: ", operation, ": group '", name(), "' was shut down");
  }

  shmcclComm_t collectives(const char* operation) { return ensure(operation), collectives_; }
  shmcclComm_t messages(const char* operation) { return ensure(operation), messages_; }

  // Ends every operation on all ranks.
  void revoke() {
    if (!is_here()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (messages_) table->CommRevoke(messages_);
    if (collectives_) table->CommRevoke(collectives_);
  }

  // The ranks that hold the others up.
  std::vector<int> stragglers() {
    if (!is_here()) return {};
    std::vector<int> ranks(static_cast<size_t>(size()));
    std::lock_guard<std::mutex> lock(mutex_);
    int count = 0;
    if (!collectives_) return {};
    if (table->CommGetStragglers(collectives_, ranks.data(), &count) != shmcclSuccess) return {};
    ranks.resize(static_cast<size_t>(count));
    return ranks;
  }

  // Ends every operation on all ranks, which are told who was late. Both communicators have one epoch.
  void revoke_awaiting(const std::vector<int>& late) {
    if (!is_here()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    if (collectives_) table->CommRevokeAwaiting(collectives_, late.empty() ? -1 : late[0]);
  }

  // The failure with all ranks that were late, where the engine has named one of them.
  Failure naming_all(Failure failure) {
    if (failure.code != shmcclTimeout) return failure;
    const auto late = stragglers();
    if (late.size() > 1) failure.text += "; late are rank" + name_ranks(late);
    return failure;
  }

  // Raises that an operation has timed out, and names the ranks that were late.
  [[noreturn]] void fail_late(milliseconds waited, const std::vector<int>& late, const char* operation) const {
    Failure failure{shmcclTimeout, "timed out after " + std::to_string(waited.count()) + " ms"};
    if (!late.empty()) failure.text += ", awaiting rank" + name_ranks(late);
    if (late.size() == 1) failure.rank = late[0];
    fail(failure, operation);
  }

  // Names ranks behind the word for one, with their numbers in the default group where these differ.
  std::string name_ranks(const std::vector<int>& ranks) const {
    std::string named = ranks.size() > 1 ? "s" : "", global;
    for (size_t i = 0; i < ranks.size(); i++) {
      named += (i ? ", " : " ") + std::to_string(ranks[i]);
      const auto number = global_rank(ranks[i]);
      if (number && ranks.size() > 1) global += (global.empty() ? "" : ", ") + std::to_string(*number);
    }
    return named + (global.empty() ? "" : " (global ranks " + global + ")");
  }

  // Leaves the group. The other ranks may still need this one to come: it does not leave before they have met.
  void close() {
    if (!is_here() || state_ == State::closed) return;
    try {
      ensure("shutdown");
    } catch (const c10::Error&) {
      // Nobody waits for a group that has not come together: its operations tell why.
    }
    State ready = State::ready;
    state_.compare_exchange_strong(ready, State::closed);
  }

  // Leaves a group that nobody uses any more. Where it still meets, it waits for the other ranks a moment, and no longer.
  void abandon() noexcept {
    if (!is_here()) return;
    std::optional<py::gil_scoped_release> unlocked;
    if (Py_IsInitialized() && PyGILState_Check()) unlocked.emplace();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kAbandonedAfter, [&] { return state_ != State::meeting; });
    cancelled_ = true;
    State ready = State::ready;
    state_.compare_exchange_strong(ready, State::closed);
    lock.unlock();
    // The thread that has ended the last operation may still hold the connection. This rank has left once that is gone.
    if (Callers::here == 0 && !within_callback) endings_->settle();
  }

  // Gives the waits that begin from now on so much time.
  void set_timeout(milliseconds timeout) {
    timeout_ = std::max(bounded(timeout), milliseconds(1));
    if (!is_here()) return;
    std::unique_lock<std::mutex> lock(mutex_);
    const auto communicator = collectives_;
    lock.unlock();
    if (communicator) apply_timeout(communicator);
  }

  // Why the communicators have ended, or nothing.
  Failure ended() {
    // A child of a fork has none: the lock may be held there for ever.
    if (!is_here()) return {};
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::failed) return failure_;
    if (!collectives_) return {};
    shmcclResult_t reason = shmcclSuccess;
    table->CommGetAsyncError(collectives_, &reason);
    return Failure::of(reason);
  }

  // Memory in the heap of this rank; null when that is full or there is none.
  void* allocate(size_t bytes) {
    ensure("allocate_tensor");
    void* memory = nullptr;
    if (alone() || bytes == 0 || table->MemAlloc(collectives_, &memory, bytes) != shmcclSuccess) return nullptr;
    return memory;
  }

  // Returns the offset of a tensor in this rank's heap, if it lies there.
  std::optional<uint64_t> locate(const Tensor& tensor) const {
    if (alone() || state_ != State::ready || !tensor.device().is_cpu()) return {};
    int owner = -1;
    uint64_t offset = 0;
    const auto code = table->MemLocate(collectives_, tensor.const_data_ptr(), tensor.nbytes(), &owner, &offset);
    return code == shmcclSuccess && owner == rank() ? std::optional(offset) : std::nullopt;
  }

 private:
  enum class State { idle, meeting, ready, failed, closed };
  static constexpr milliseconds kAbandonedAfter{1000};

  // The number of a rank in the default group, where it is another one.
  std::optional<uint64_t> global_rank(int rank) const {
    const auto& numbers = options_.global_ranks;
    const auto index = static_cast<size_t>(rank);
    if (rank < 0 || index >= numbers.size() || numbers[index] == index) return {};
    return numbers[index];
  }

  // It concerns all communicators of the meeting.
  void apply_timeout(shmcclComm_t communicator) const {
    table->CommSetTimeout(communicator, static_cast<uint64_t>(timeout().count()));
  }

  void run(const Meeting& meeting) {
    Failure failure;
    try {
      failure = meet(meeting);
    } catch (const std::exception& error) {
      failure = {shmcclSystemError, error.what()};
    }
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = failure;
    state_ = failure ? State::failed : cancelled_ ? State::closed : State::ready;
    changed_.notify_all();
  }

  Failure meet(const Meeting& meeting) {
    std::vector<shmcclProcess_t> processes;
    for (const auto& process : meeting.processes) processes.push_back(as_bytes<shmcclProcess_t>(process));
    shmcclConfig_t config{};
    config.size = sizeof config;
    config.processes = processes.data();
    config.timeoutMs = static_cast<uint64_t>(timeout().count());
    shmcclComm_t collectives = nullptr, messages = nullptr;
    auto code = table->CommInitRankConfig(&collectives, size(), as_bytes<shmcclUniqueId>(meeting.id), rank(), &config);
    if (code != shmcclSuccess) return Failure::of(code);
    code = table->CommDuplicate(collectives, &messages);
    if (code != shmcclSuccess) {
      const auto failure = Failure::of(code);
      table->CommDestroy(collectives);
      return failure;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    collectives_ = collectives;
    messages_ = messages;
    lock.unlock();
    // It may have changed meanwhile.
    apply_timeout(collectives);
    return {};
  }

  const ConnectionOptions options_;
  // How long a wait of the engine may take.
  std::atomic<milliseconds> timeout_;
  const int forks_ = forks;
  // Threads that end operations of this connection, or call functions of the program for them. It outlives the connection.
  const std::shared_ptr<Inside> endings_ = std::make_shared<Inside>();
  Report report_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<State> state_{State::idle};
  std::atomic<bool> cancelled_{false};
  Failure failure_;
  shmcclComm_t collectives_ = nullptr;
  shmcclComm_t messages_ = nullptr;
};

using ConnectionPtr = std::shared_ptr<Connection>;

}  // namespace shim
