// A process group of torch.distributed over the engine's function table (`shmccl.h`).
//
// torch knows `Backend`, which turns each call of c10d into calls of the table and returns a `Pending`, and
// `SharedWindow`. This file links to torch only: `shmccl._core` hands it the table. No engine logic stands here.
//
// * A `Connection` is one meeting of the ranks: two communicators, so that messages never queue behind collectives.
//   A thread makes it while the program goes on; whoever needs it first waits for it. Works and tensors keep it alive.
// * A synchronous call runs on the caller's thread. An asynchronous one is queued: nothing that may wait runs inline,
//   and `wait` takes over what the engine's worker has not begun.
// * The engine calls `Pending::ended` once for each queued operation, on any thread, without the GIL. Functions of the
//   program are not called there: `Callers` has threads for them, on which nothing else depends.
// * Once the interpreter ends, no thread of this file drops or calls what is Python's: see `Gate`.
// * A child of a fork touches nothing of the parent's engine.

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/safe_numerics.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "shmccl.h"

// Says for which torch this file was compiled, to who reads the library without loading it.
extern "C" __attribute__((used, visibility("default"))) const char shmccl_shim_torch[] = "SHMCCL_SHIM_TORCH=" TORCH_VERSION;

namespace {

namespace py = pybind11;
using at::Tensor;
using c10d::OpType;
using c10d::Work;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Tensors = std::vector<Tensor>;
using WorkPtr = c10::intrusive_ptr<Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// How many forks have led to this process: quicker to ask than for its number.
std::atomic<int> forks{0};

// Held while a thread is started, and by a fork: glibc frees memory of earlier threads when it starts one, and a child
// that was forked meanwhile frees it once more. Never destroyed, and a child gets one of its own.
std::mutex* starting = new std::mutex();

template <class Body>
void start_thread(Body body) {
  const std::lock_guard<std::mutex> lock(*starting);
  std::thread(std::move(body)).detach();
}

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
constexpr auto kAllGatherCoalesced = OpType::COALESCED;
#else
constexpr auto kAllGatherCoalesced = OpType::ALLGATHER_INTO_TENSOR_COALESCED;
#endif

const shmcclTable* table = nullptr;

// The end of the interpreter -------------------------------------------------------------------------------------

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
    // Who came with the lock of the interpreter gives it up: its end waits for that.
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
Gate* gate = new Gate();

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

// Errors ---------------------------------------------------------------------------------------------------------

struct Failure {
  shmcclResult_t code = shmcclSuccess;
  // Names the rank, where there is one.
  std::string text;
  // That rank, as the group numbers it, or -1.
  int rank = -1;

  // Takes what the engine says of the failure that this thread got last.
  static Failure of(shmcclResult_t code) {
    if (code == shmcclSuccess) return {};
    const char* text = table->GetLastError(nullptr);
    int rank = -1;
    table->GetLastErrorRank(nullptr, &rank);
    return {code, text ? text : "the engine gives no reason", rank};
  }

  explicit operator bool() const { return code != shmcclSuccess; }
};

// Raises what a handler of signals has raised: here, or in a wait of the engine, for which `shmccl._core` keeps it.
[[noreturn]] void raise_interrupt() {
  py::gil_scoped_acquire gil;
  if (!PyErr_Occurred()) {
    py::module_::import("shmccl._core").attr("raise_interrupt")();
    PyErr_SetNone(PyExc_KeyboardInterrupt);
  }
  throw py::error_already_set();
}

[[noreturn]] void raise(const Failure& failure, const std::string& what) {
  if (failure.code == shmcclInterrupted) raise_interrupt();
  const std::string text = "shmccl: " + what + ": " + failure.text;
  if (failure.code == shmcclInvalidArgument) C10_THROW_ERROR(ValueError, text);
  C10_THROW_ERROR(DistBackendError, text);
}

// Runs the handlers of signals that have come, where this thread may. Nonzero: one has raised an exception.
int signals_raised() {
  const Gate::Pass pass(*gate);
  if (!pass || !Py_IsInitialized()) return 0;
  py::gil_scoped_acquire gil;
  return PyErr_CheckSignals();
}

// Waits until `is_over`, or throws what a handler of signals has raised. Says whether that came before the deadline. The
// caller has no GIL.
template <class Condition>
bool await_change(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Condition is_over,
                  steady_clock::time_point deadline = steady_clock::time_point::max()) {
  for (;;) {
    const auto next = std::min<steady_clock::time_point>(deadline, steady_clock::now() + milliseconds(100));
    if (changed.wait_until(lock, next, is_over)) return true;
    if (next == deadline) return false;
    lock.unlock();
    if (signals_raised()) raise_interrupt();
    lock.lock();
  }
}

// A time-out that means never. Any clock can add it to its time.
constexpr milliseconds kNever = std::chrono::hours(24 * 36500);

// What torch makes of a time-out that it has no room for is negative.
milliseconds bounded(milliseconds timeout) { return timeout.count() < 0 ? kNever : std::min(timeout, kNever); }

// Calls a function of the program that has nobody to raise to: what it raises is printed.
template <class Hook, class... Arguments>
void call_hook(const Hook& hook, const Arguments&... arguments) {
  try {
    hook(arguments...);
  } catch (py::error_already_set& error) {
    py::gil_scoped_acquire gil;
    error.discard_as_unraisable("a hook of a process group");
  } catch (const std::exception& error) {
    LOG(ERROR) << "shmccl: a hook of a process group has failed: " << error.what();
  }
}

// Functions of the program -----------------------------------------------------------------------------------------

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
      // Who waits for the lock of the interpreter wakes every few milliseconds: it is no sleeper.
      if (!sleeps || use.time != time_ || has_operations) asleep_since_ = now;
      // Who polls may be seen awake now and then.
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
      // Those that are there go on, later.
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
Callers* callers = new Callers();

// Types ----------------------------------------------------------------------------------------------------------

shmcclDataType_t type_of(at::ScalarType type, const char* operation) {
  static const std::map<at::ScalarType, shmcclDataType_t> types{
      {at::kBool, shmcclBool},         {at::kChar, shmcclInt8},             {at::kByte, shmcclUint8},
      {at::kShort, shmcclInt16},       {at::kUInt16, shmcclUint16},         {at::kInt, shmcclInt32},
      {at::kUInt32, shmcclUint32},     {at::kLong, shmcclInt64},            {at::kUInt64, shmcclUint64},
      {at::kHalf, shmcclFloat16},      {at::kFloat, shmcclFloat32},         {at::kDouble, shmcclFloat64},
      {at::kBFloat16, shmcclBfloat16}, {at::kFloat8_e4m3fn, shmcclFloat8e4m3}, {at::kFloat8_e5m2, shmcclFloat8e5m2},
      {at::kComplexFloat, shmcclComplex64}, {at::kComplexDouble, shmcclComplex128},
  };
  const auto found = types.find(type);
  TORCH_CHECK_TYPE(found != types.end(), "shmccl: ", operation, " cannot reduce tensors of type ", type,
                   "; it can only move them (broadcast, gather, send, ...)");
  return found->second;
}

// Booleans are added by `or` and multiplied by `and`.
shmcclRedOp_t op_of(c10d::ReduceOp::RedOpType op, at::ScalarType type, const char* operation) {
  using Op = c10d::ReduceOp;
  static const std::map<Op::RedOpType, shmcclRedOp_t> ops{
      {Op::SUM, shmcclSum}, {Op::PREMUL_SUM, shmcclSum}, {Op::PRODUCT, shmcclProd}, {Op::MIN, shmcclMin},     {Op::MAX, shmcclMax},
      {Op::AVG, shmcclAvg}, {Op::BAND, shmcclBitAnd},    {Op::BOR, shmcclBitOr},    {Op::BXOR, shmcclBitXor},
  };
  const bool is_bitwise = op == Op::BAND || op == Op::BOR || op == Op::BXOR;
  const bool is_scaled = op == Op::AVG || op == Op::PREMUL_SUM;
  TORCH_CHECK_VALUE(ops.count(op), "shmccl: ", operation, ": unknown reduction");
  TORCH_CHECK_TYPE(!is_bitwise || at::isIntegralType(type, true), "shmccl: ", operation,
                   ": BAND, BOR and BXOR need integers or booleans, not ", type);
  TORCH_CHECK_TYPE(!is_scaled || type != at::kBool, "shmccl: ", operation, " of booleans takes no AVG and no PREMUL_SUM");
  TORCH_CHECK_TYPE(!at::isComplexType(type) || op == Op::SUM || is_scaled, "shmccl: ", operation,
                   " of complex numbers takes SUM, AVG and PREMUL_SUM only");
  return ops.at(op);
}

// The factor of PREMUL_SUM as one element of the tensor's type, or of its real part's.
Tensor premul_factor(const c10d::ReduceOp& op, at::ScalarType elements) {
  const auto type = at::isComplexType(elements) ? c10::toRealValueType(elements) : elements;
  auto* supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement, "shmccl: PREMUL_SUM without a factor");
  if (supplement->tensor_factor.defined()) return supplement->tensor_factor.to(at::kCPU, type).contiguous();
  return at::full({1}, supplement->double_factor, at::TensorOptions().dtype(type));
}

// Arguments ------------------------------------------------------------------------------------------------------

void check_dense(const Tensor& tensor, const char* operation) {
  TORCH_CHECK(tensor.layout() == at::kStrided, "shmccl: ", operation, " takes no sparse tensors; use to_dense()");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "shmccl: ", operation, " takes tensors on the CPU, not on ", tensor.device());
}

void check_tensor(const Tensor& tensor, const char* operation) {
  check_dense(tensor, operation);
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "Tensors must be contiguous: ", operation);
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), "shmccl: ", operation, " needs resolve_conj() and resolve_neg()");
}

const Tensor& only(const Tensors& tensors, const char* operation) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "shmccl: ", operation, " takes one tensor per rank, not ", tensors.size());
  check_tensor(tensors[0], operation);
  return tensors[0];
}

// An input as the engine reads it. One that does not lie in one piece is copied.
Tensor in_one_piece(const Tensor& input, const char* operation) {
  check_dense(input, operation);
  auto read = input.contiguous();
  check_tensor(read, operation);
  return read;
}

Tensor only_input(const Tensors& inputs, const char* operation) {
  TORCH_CHECK_VALUE(inputs.size() == 1, "shmccl: ", operation, " takes one tensor per rank, not ", inputs.size());
  return in_one_piece(inputs[0], operation);
}

void check_same_type(const Tensor& a, const Tensor& b, const char* operation) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), "shmccl: ", operation, ": input is ", b.scalar_type(), ", output ",
                   a.scalar_type());
}

void check_blocks(const Tensor& whole, const Tensor& block, int size, const char* operation) {
  check_tensor(whole, operation);
  check_tensor(block, operation);
  check_same_type(whole, block, operation);
  TORCH_CHECK_VALUE(whole.numel() == block.numel() * size, "shmccl: ", operation, " needs ", block.numel() * size,
                    " elements in the larger tensor, which has ", whole.numel());
}

// Checks a list with a tensor for each rank, all like `like`.
void check_list(const Tensors& list, const Tensor& like, int size, const char* operation) {
  TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size), "shmccl: ", operation, " needs a list of ", size,
                    " tensors, not ", list.size());
  for (const auto& tensor : list) {
    check_same_type(tensor, like, operation);
    TORCH_CHECK_VALUE(tensor.numel() == like.numel(), "shmccl: ", operation, ": tensors of the list differ in size");
    check_dense(tensor, operation);
  }
}

// The tensors of a list that lie one behind the other as one, undefined where they do not.
Tensor as_one(const Tensors& list) {
  if (list.empty()) return {};
  auto* next = static_cast<const char*>(list[0].const_data_ptr());
  int64_t total = 0;
  for (const auto& tensor : list) {
    if (!tensor.is_contiguous() || !tensor.is_alias_of(list[0]) || tensor.const_data_ptr() != next) return {};
    next += tensor.nbytes();
    total += tensor.numel();
  }
  return list[0].as_strided({total}, {1}, list[0].storage_offset());
}

// The tensors of a list in one piece: where they lie, or a copy.
Tensor gathered(const Tensors& list) {
  auto whole = as_one(list);
  if (whole.defined()) return whole;
  Tensors flat;
  for (const auto& tensor : list) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

// A tensor in memory that torch has not allocated. Its storage grows as any other does: into memory of torch's own.
Tensor lent(void* memory, at::IntArrayRef sizes, std::function<void(void*)> release, const at::TensorOptions& options) {
  return at::for_blob(memory, sizes)
      .deleter(std::move(release))
      .options(options)
      .resizeable_storage()
      .allocator(c10::GetCPUAllocator())
      .make_tensor();
}

using Actions = std::vector<std::function<void()>>;

// Memory in one piece for the results of a list: where that lies, or a tensor that `after` copies into it.
Tensor landing(const Tensors& list, Actions& after) {
  auto whole = as_one(list);
  if (whole.defined()) return whole;
  int64_t total = 0;
  for (const auto& tensor : list) total += tensor.numel();
  whole = at::empty({total}, list[0].options());
  after.push_back([whole, list] {
    int64_t at = 0;
    for (const auto& tensor : list) {
      tensor.copy_(whole.narrow(0, at, tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  });
  return whole;
}

// What a call of c10d asks of the engine ---------------------------------------------------------------------------

// A call of the engine with what it points to.
struct Step {
  shmcclCall_t call{};
  size_t bytes = 0;
  bool is_message = false;
  Tensor scalar;
  // Counts and offsets of what is sent and received, in bytes.
  std::shared_ptr<std::array<std::vector<size_t>, 4>> blocks;
};

struct Job {
  const char* operation;
  OpType type;
  c10::SmallVector<Step, 1> steps;
  Tensors outputs;
  // Tensors that the engine uses besides.
  Tensors kept;
  // What is left to do when the data are there.
  Actions after;

  void append(Job&& other) {
    std::move(other.steps.begin(), other.steps.end(), std::back_inserter(steps));
    outputs.insert(outputs.end(), other.outputs.begin(), other.outputs.end());
    kept.insert(kept.end(), other.kept.begin(), other.kept.end());
    std::move(other.after.begin(), other.after.end(), std::back_inserter(after));
  }
};

Step step(shmcclOperation_t operation, const void* send, void* recv, size_t bytes, int root = 0) {
  Step made;
  made.bytes = bytes;
  made.call.size = sizeof(shmcclCall_t);
  made.call.operation = operation;
  made.call.datatype = shmcclUint8;
  made.call.peer = root;
  made.call.sendbuff = send;
  made.call.recvbuff = recv;
  made.call.count = bytes;
  return made;
}

// Makes a step that reduces as many elements as `like` has, of its type.
Step reduction(shmcclOperation_t operation, const void* send, void* recv, const Tensor& like, const c10d::ReduceOp& op,
               const char* name, int root = 0) {
  auto made = step(operation, send, recv, like.nbytes(), root);
  made.call.datatype = type_of(like.scalar_type(), name);
  made.call.op = op_of(op.op_, like.scalar_type(), name);
  made.call.count = static_cast<size_t>(like.numel());
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    made.scalar = premul_factor(op, like.scalar_type());
    made.call.scalar = made.scalar.const_data_ptr();
  }
  return made;
}

std::vector<size_t> offsets_of(const std::vector<size_t>& counts) {
  std::vector<size_t> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), size_t{0});
  return offsets;
}

// Makes a step that exchanges blocks of these lengths, which lie one behind the other.
Step exchange(const void* send, void* recv, const std::vector<size_t>& sent, const std::vector<size_t>& received) {
  auto made = step(shmcclOpAlltoAllv, send, recv, 0);
  made.blocks = std::make_shared<std::array<std::vector<size_t>, 4>>(
      std::array{sent, offsets_of(sent), received, offsets_of(received)});
  made.call.sendcounts = (*made.blocks)[0].data();
  made.call.sdispls = (*made.blocks)[1].data();
  made.call.recvcounts = (*made.blocks)[2].data();
  made.call.rdispls = (*made.blocks)[3].data();
  return made;
}

// Makes a step that ends when all ranks have come to it. It needs a byte.
Step meeting_point(const Tensor& token) {
  auto made = step(shmcclOpAllReduce, token.const_data_ptr(), token.mutable_data_ptr(), 1);
  made.call.op = shmcclMax;
  return made;
}

// The memory of a tensor. The front end counts versions; the bytes are the engine's for the time of the call.
void* data(const Tensor& tensor) { return tensor.mutable_data_ptr(); }

// Bytes that a step reads or writes.
struct Span {
  const char* begin = nullptr;
  size_t bytes = 0;

  const char* end() const { return begin + bytes; }
};

size_t total(const std::vector<size_t>& counts) { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }

Span input_of(const Step& step, size_t size) {
  const auto& call = step.call;
  const bool is_whole = call.operation == shmcclOpReduceScatter || call.operation == shmcclOpScatter;
  const size_t bytes = step.blocks ? total((*step.blocks)[0]) : step.bytes * (is_whole ? size : 1);
  return {static_cast<const char*>(call.sendbuff), call.sendbuff ? bytes : 0};
}

Span output_of(const Step& step, size_t size) {
  const auto& call = step.call;
  const bool is_whole = call.operation == shmcclOpAllGather || call.operation == shmcclOpGather;
  const size_t bytes = step.blocks ? total((*step.blocks)[2]) : step.bytes * (is_whole ? size : 1);
  return {static_cast<const char*>(call.recvbuff), call.recvbuff ? bytes : 0};
}

bool overlap(const Span& a, const Span& b) { return a.bytes && b.bytes && a.begin < b.end() && b.begin < a.end(); }

// Whether a step is in place, as the engine has it: both buffers are one, or one is the rank's block of the other.
bool is_in_place(const Step& step, const Span& input, const Span& output, size_t rank) {
  if (step.blocks && (*step.blocks)[0] != (*step.blocks)[2]) return false;
  if (input.bytes == output.bytes) return input.begin == output.begin;
  if (input.bytes < output.bytes) return input.begin == output.begin + rank * input.bytes;
  return output.begin == input.begin + rank * output.bytes;
}

// Where the steps of a job write.
class Outputs {
 public:
  Outputs(const c10::SmallVector<Step, 1>& steps, size_t size) {
    for (const auto& step : steps) {
      if (const auto output = output_of(step, size); output.bytes) spans_.push_back(output);
    }
    std::sort(spans_.begin(), spans_.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    const char* reach = nullptr;
    for (const auto& span : spans_) {
      are_apart_ = are_apart_ && reach <= span.begin;
      reach_.push_back(reach = std::max(reach, span.end()));
    }
  }

  bool are_apart() const { return are_apart_; }

  bool overlap(const Span& input) const {
    const auto behind = std::lower_bound(spans_.begin(), spans_.end(), input.end(),
                                         [](const Span& span, const char* end) { return span.begin < end; });
    return input.bytes && behind != spans_.begin() && reach_[behind - spans_.begin() - 1] > input.begin;
  }

 private:
  std::vector<Span> spans_;
  // The highest end of each span and of those before it.
  std::vector<const char*> reach_;
  bool are_apart_ = true;
};

// Copies the inputs that a job would write before it has read them: torch's calls, and blocks of calls, read all their
// inputs as these are at the begin.
void detach_inputs(Job& job, int rank, int size) {
  const auto n = static_cast<size_t>(size);
  const auto is_fine = [&](const Step& step, const Span& input, const Span& output) {
    return is_in_place(step, input, output, static_cast<size_t>(rank));
  };
  if (job.steps.size() == 1) {
    const auto input = input_of(job.steps[0], n), output = output_of(job.steps[0], n);
    if (!overlap(input, output) || is_fine(job.steps[0], input, output)) return;
  }
  const Outputs outputs(job.steps, n);
  for (auto& step : job.steps) {
    const auto input = input_of(step, n);
    if (!outputs.overlap(input) || (outputs.are_apart() && is_fine(step, input, output_of(step, n)))) continue;
    auto* bytes = const_cast<char*>(input.begin);
    auto copy = at::from_blob(bytes, {static_cast<int64_t>(input.bytes)}, at::TensorOptions().dtype(at::kByte)).clone();
    step.call.sendbuff = copy.const_data_ptr();
    job.kept.push_back(std::move(copy));
  }
}

// Does a step in a group of one.
void run_alone(const Step& step) {
  auto* recv = static_cast<char*>(step.call.recvbuff);
  size_t bytes = step.bytes;
  if (step.blocks) {
    bytes = step.call.sendcounts[0];
    const size_t received = step.call.recvcounts[0];
    TORCH_CHECK_VALUE(bytes == received, "shmccl: all_to_all: blocks of ", bytes, " and ", received, " bytes");
  }
  if (bytes && step.call.sendbuff && recv) std::memmove(recv, step.call.sendbuff, bytes);
  if (step.scalar.defined() && recv) {
    auto result = at::from_blob(recv, {static_cast<int64_t>(bytes / step.scalar.itemsize())}, step.scalar.options());
    // Torch multiplies no numbers of 8 bits with a point.
    if (at::isFloat8Type(result.scalar_type())) result.copy_(result.to(at::kFloat).mul_(step.scalar.to(at::kFloat)));
    else result.mul_(step.scalar);
  }
}

// What the works of a group report to --------------------------------------------------------------------------------

class Pending;
using SuccessHook = std::function<void(const Pending&)>;

// Hooks by their ids. A set of them never changes: who calls it needs no lock meanwhile.
template <class Hook>
using Hooks = std::shared_ptr<const std::map<int64_t, Hook>>;

struct Report {
  std::atomic<int64_t> pending{0};
  // How much longer the next operation may take, in ms.
  std::atomic<int64_t> extra{0};
  std::atomic<bool> timed{false}, hooked{false}, heard{false}, aborted{false};
  std::atomic<shmcclResult_t> failed{shmcclSuccess};
  std::mutex mutex;
  std::condition_variable idle;
  Hooks<std::function<void()>> on_abort;
  // Torch's own, which it promises to be short and to call nothing, such as those of its flight recorder. Whoever ends an
  // operation calls them.
  Hooks<SuccessHook> on_success;
  // The program's, which `Callers` call.
  Hooks<SuccessHook> on_completion;

  // Goes on with the settings and hooks of another one.
  void adopt(Report& before) {
    std::lock_guard<std::mutex> lock(before.mutex);
    timed = before.timed.load();
    hooked = before.hooked.load();
    heard = before.heard.load();
    on_abort = before.on_abort;
    on_success = before.on_success;
    on_completion = before.on_completion;
  }

  // Sets a hook, or removes it where `hook` is empty.
  template <class Hook>
  void set(Hooks<Hook>& hooks, int64_t id, Hook hook) {
    std::lock_guard<std::mutex> lock(mutex);
    auto changed = hooks ? *hooks : std::map<int64_t, Hook>();
    if (hook) changed[id] = std::move(hook);
    else changed.erase(id);
    hooks = std::make_shared<const std::map<int64_t, Hook>>(std::move(changed));
    hooked = on_success && !on_success->empty();
    heard = on_completion && !on_completion->empty();
  }

  template <class Hook, class... Arguments>
  void call(const Hooks<Hook>& hooks, const Arguments&... arguments) {
    std::unique_lock<std::mutex> lock(mutex);
    const auto called = hooks;
    lock.unlock();
    if (!called) return;
    for (const auto& [id, hook] : *called) call_hook(hook, arguments...);
  }
};

// The connection -------------------------------------------------------------------------------------------------

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
thread_local bool within_callback = false;

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
    // Whoever has ended the last operation may hold the connection still, and this rank has not left until it is gone.
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

  // Where a tensor lies in this rank's heap, if it does.
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

// One operation, or several that were put together ----------------------------------------------------------------

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

  // What the engine calls at the end of a part.
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
    // Who waits for a future does not take the operation over: the worker is told to begin.
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

// Windows ----------------------------------------------------------------------------------------------------------

#ifdef C10D_BACKEND_HAS_WINDOW
// Takes a signal in the thread that waits for it. Where one only asks, or has a deadline, another thread takes it.
class SignalWait : public Work {
 public:
  SignalWait(ConnectionPtr connection, int64_t peer, std::function<void()> take)
      : Work(connection->rank(), OpType::UNKNOWN), connection_(std::move(connection)), peer_(static_cast<int>(peer)),
        take_(std::move(take)) {}

  bool isCompleted() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::idle) begin();
    return state_ == State::done;
  }
  bool isSuccess() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return state_ == State::done && !exception_;
  }
  void synchronize() override { wait(milliseconds(0)); }

  bool wait(milliseconds timeout) override {
    timeout = timeout == c10d::kUnsetTimeout ? milliseconds(0) : bounded(timeout);
    const bool is_bounded = timeout.count() > 0;
    const auto deadline = is_bounded ? steady_clock::now() + timeout : steady_clock::time_point::max();
    std::unique_lock<std::mutex> lock(mutex_);
    while (state_ != State::done) {
      if (state_ == State::idle && !is_bounded) {
        take_here(lock);
        continue;
      }
      if (state_ == State::idle) begin();
      if (await_change(lock, cv_, [&] { return state_ != State::taking; }, deadline)) continue;
      connection_->fail_late(timeout, {peer_}, "wait_signal");
    }
    if (exception_) std::rethrow_exception(exception_);
    return true;
  }

 private:
  enum class State { idle, taking, done };

  void take_here(std::unique_lock<std::mutex>& lock) {
    state_ = State::taking;
    lock.unlock();
    try {
      take_();
    } catch (...) {
      // A wait that was interrupted may be repeated.
      lock.lock();
      set(State::idle);
      throw;
    }
    lock.lock();
    set(State::done);
  }

  // Has a thread take the signal. The caller holds the lock.
  void begin() {
    start_thread([self = c10::intrusive_ptr<SignalWait>::reclaim_copy(this)]() mutable {
      std::exception_ptr failure;
      try {
        self->take_();
      } catch (...) {
        failure = std::current_exception();
      }
      std::unique_lock<std::mutex> lock(self->mutex_);
      self->exception_ = failure;
      self->set(State::done);
      lock.unlock();
      drop(std::move(self));
    });
    state_ = State::taking;
  }

  void set(State state) {
    state_ = state;
    cv_.notify_all();
  }

  const ConnectionPtr connection_;
  const int peer_;
  const std::function<void()> take_;
  State state_ = State::idle;
};

class SharedWindow : public c10d::Window {
 public:
  explicit SharedWindow(ConnectionPtr connection) : connection_(std::move(connection)) {
    // Signals are counted per pair of ranks and communicator: each window has its own.
    check(table->CommDuplicate(connection_->collectives("new_window"), &comm_), "new_window");
    // The engine has signals where there is a window: this one is of no bytes.
    check(table->CommWindowRegister(comm_, nullptr, 0, &signals_), "new_window");
  }

  ~SharedWindow() override {
    if (connection_->is_here() && comm_) table->CommDestroy(comm_);
  }

  void tensor_register(const Tensor& tensor, bool owning) override {
    TORCH_CHECK(!registered_, "shmccl: double registration of a window");
    check_tensor(tensor, "tensor_register");
    const auto offset = connection_->locate(tensor);
    TORCH_CHECK(tensor.numel() == 0 || offset,
                "shmccl: a window takes tensors of the backend's own MemPool only: allocate it with shmccl.torch.empty");
    TORCH_CHECK(tensor.dim() <= kDimensions, "shmccl: a window takes tensors of at most ", kDimensions, " dimensions");
    Place mine{offset.value_or(0), tensor.numel(), tensor.scalar_type(), tensor.dim(), {}};
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), mine.sizes.begin());
    places_.resize(connection_->size());
    submit(step(shmcclOpAllGather, &mine, places_.data(), sizeof mine), "tensor_register");
    registered_ = true;
    if (owning) tensor_ = tensor;
  }

  void tensor_deregister() override {
    check_registered("tensor_deregister");
    // Nobody's put is under way when all have come here.
    submit(meeting_point(at::zeros({1}, at::kByte)), "tensor_deregister");
    registered_ = false;
    tensor_ = Tensor();
  }

  WorkPtr put(const Tensor& tensor, int64_t destination, int64_t offset, bool, const c10d::PutOptions&) override {
    check_registered("put", destination);
    check_tensor(tensor, "put");
    TORCH_CHECK(offset >= 0, "shmccl: put: the offset must be nonnegative, and is ", offset);
    const auto& target = places_[destination];
    TORCH_CHECK(tensor.numel() <= target.count && offset <= target.count - tensor.numel(), "shmccl: put of ", tensor.numel(),
                " elements at ", offset, " exceeds the window size of rank ", destination, ", ", target.count, " elements");
    TORCH_CHECK(tensor.scalar_type() == target.type, "shmccl: put: type ", tensor.scalar_type(), " does not match that of rank ",
                destination, "'s window, ", target.type);
    TORCH_CHECK(tensor.numel() == 0 || connection_->locate(tensor),
                "shmccl: put: the source is not in a registered segment: allocate it with shmccl.torch.empty");
    if (tensor.numel() > 0) {
      const uint64_t at = target.offset + static_cast<uint64_t>(offset) * tensor.itemsize();
      std::memcpy(address(destination, at, tensor.nbytes()), tensor.const_data_ptr(), tensor.nbytes());
    }
    return raise_signal(destination);
  }

  WorkPtr signal(int64_t peer, bool, const c10d::SignalOptions&) override {
    check_registered("signal", peer);
    return raise_signal(peer);
  }

  WorkPtr wait_signal(int64_t peer, bool is_async, const c10d::WaitSignalOptions&) override {
    check_registered("wait_signal", peer);
    auto self = c10::intrusive_ptr<SharedWindow>::reclaim_copy(this);
    auto work = c10::make_intrusive<SignalWait>(connection_, peer, [self, peer] { self->take_signal(peer); });
    if (!is_async) work->wait(milliseconds(0));
    return work;
  }

  Tensor map_remote_tensor(int64_t rank) override {
    check_registered("map_remote_tensor", rank);
    const auto& place = places_[rank];
    const auto options = at::TensorOptions().dtype(place.type);
    const at::IntArrayRef sizes(place.sizes.data(), static_cast<size_t>(place.dimensions));
    if (place.count == 0) return at::empty(sizes, options);
    void* memory = address(rank, place.offset, static_cast<size_t>(place.count) * options.dtype().itemsize());
    return lent(memory, sizes, [kept = connection_](void*) {}, options);
  }

  c10d::WindowAttr get_attr(int64_t peer) override {
    check_registered("get_attr", peer);
    return {};
  }

 private:
  static constexpr int64_t kDimensions = 8;

  // Where a rank's tensor lies in its heap, and what it is.
  struct Place {
    uint64_t offset;
    int64_t count;
    at::ScalarType type;
    int64_t dimensions;
    std::array<int64_t, kDimensions> sizes;
  };

  void check(shmcclResult_t code, const char* operation) const {
    if (code != shmcclSuccess) connection_->fail(Failure::of(code), operation);
  }
  void check_registered(const char* operation, int64_t rank = 0) const {
    TORCH_CHECK(registered_, "shmccl: ", operation, ": the window is not registered; call tensor_register first");
    TORCH_CHECK(rank >= 0 && rank < connection_->size(), "shmccl: ", operation, ": ", rank, " is no rank of a group of ",
                connection_->size());
  }

  void submit(const Step& made, const char* operation) {
    check(table->Submit(comm_, &made.call, 1, nullptr, nullptr, nullptr), operation);
  }

  void* address(int64_t rank, uint64_t offset, size_t bytes) const {
    void* memory = nullptr;
    check(table->MemAddress(connection_->collectives("window"), static_cast<int>(rank), offset, bytes, &memory), "window");
    return memory;
  }

  WorkPtr raise_signal(int64_t peer) {
    if (peer == connection_->rank()) own_signals_++;
    else check(table->Signal(static_cast<int>(peer), 0, comm_, nullptr), "signal");
    auto work = c10::make_intrusive<Pending>(connection_, Job{"signal", OpType::UNKNOWN}, 0, connection_->timeout());
    work->begin(false);
    return work;
  }

  void take_signal(int64_t peer) {
    const shmcclWaitSignalDesc_t awaited{1, static_cast<int>(peer), 0};
    if (peer != connection_->rank()) return check(table->WaitSignal(1, &awaited, comm_, nullptr), "wait_signal");
    if (own_signals_.fetch_sub(1) > 0) return;
    own_signals_++;
    TORCH_CHECK(false, "shmccl: wait_signal: this rank waits for a signal of its own that it has not raised");
  }

  const ConnectionPtr connection_;
  shmcclComm_t comm_ = nullptr;
  shmcclWindow_t signals_ = nullptr;
  bool registered_ = false;
  Tensor tensor_;
  std::vector<Place> places_;
  std::atomic<int64_t> own_signals_{0};
};
#endif

// The process group ----------------------------------------------------------------------------------------------

class SharedBackend : public c10d::Backend {
 public:
  SharedBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, milliseconds timeout, std::string name,
                std::vector<uint64_t> ranks, std::string place, bool reconfigurable, Meeting meeting)
      : Backend(rank, size), store_(std::move(store)), place_(std::move(place)), name_(std::move(name)),
        options_(c10::make_intrusive<Options>("shmccl", bounded(timeout))) {
    options_->group_name = name_;
    options_->global_ranks_in_group = std::move(ranks);
    connection_ = connection(timeout);
    if (!reconfigurable) connection_->start(meeting);
  }

  ~SharedBackend() override { current()->abandon(); }

  const std::string getBackendName() const override { return "shmccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsShrinking() const override { return true; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return size_ > 1; }
  void setTimeout(milliseconds timeout) override {
    options_->timeout = bounded(timeout);
    current()->set_timeout(timeout);
  }
  // Torch before 2.14 does not ask.
  void addEphemeralTimeout(const milliseconds& timeout) { report().extra += bounded(timeout).count(); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  // Collectives of one tensor ---------------------------------------------------------------------------------------

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    only(tensors, "all_reduce");
    return run({"all_reduce", OpType::ALLREDUCE, {all_reduce_step(tensors[0], opts)}, tensors}, opts);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    Job job{"all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, {}, tensors};
    for (const auto& tensor : tensors) {
      const auto source = in_one_piece(tensor, job.operation), target = tensor.is_contiguous() ? tensor : landing({tensor}, job.after);
      job.steps.push_back(reduction(shmcclOpAllReduce, data(source), data(target), source, opts.reduceOp, "all_reduce"));
      job.kept.push_back(source);
    }
    return run(std::move(job), opts);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const auto& tensor = only(tensors, "reduce");
    void* output = is_root(opts, "reduce") ? data(tensor) : nullptr;
    auto made = reduction(shmcclOpReduce, data(tensor), output, tensor, opts.reduceOp, "reduce", opts.rootRank);
    return run({"reduce", OpType::REDUCE, {made}, tensors}, opts);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const auto& tensor = only(tensors, "broadcast");
    const void* input = is_root(opts, "broadcast") ? data(tensor) : nullptr;
    auto made = step(shmcclOpBroadcast, input, data(tensor), tensor.nbytes(), opts.rootRank);
    return run({"broadcast", OpType::BROADCAST, {made}, tensors}, opts);
  }

  WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& opts) override {
    Job job{"all_gather_single", OpType::_ALLGATHER_BASE, {}, {output}};
    append_all_gather(job, output, input);
    return run(std::move(job), opts);
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    Job job{"all_gather_single_coalesced", kAllGatherCoalesced, {}, outputs, inputs};
    check_pairs(job);
    for (size_t i = 0; i < inputs.size(); i++) append_all_gather(job, outputs[i], inputs[i]);
    return run(std::move(job), opts);
  }

  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    const auto source = in_one_piece(input, "reduce_scatter_single");
    auto made = reduce_scatter_step(output, source, opts, "reduce_scatter_single");
    return run({"reduce_scatter_single", OpType::_REDUCE_SCATTER_BASE, {made}, {output}, {source}}, opts);
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    Job job{"reduce_scatter_single_coalesced", OpType::REDUCE_SCATTER_TENSOR_COALESCED, {}, outputs, inputs};
    check_pairs(job);
    for (size_t i = 0; i < inputs.size(); i++) {
      job.kept[i] = in_one_piece(inputs[i], job.operation);
      job.steps.push_back(reduce_scatter_step(outputs[i], job.kept[i], opts, job.operation));
    }
    return run(std::move(job), opts);
  }

  WorkPtr gather_into_tensor(Tensor& output, Tensor& input, const c10d::GatherOptions& opts) {
    const bool is_receiver = is_root(opts, "gather_single");
    const auto source = in_one_piece(input, "gather_single");
    if (is_receiver) check_blocks(output, source, size_, "gather_single");
    auto made = step(shmcclOpGather, data(source), is_receiver ? data(output) : nullptr, source.nbytes(), opts.rootRank);
    return run({"gather_single", OpType::GATHER, {made}, is_receiver ? Tensors{output} : Tensors{}, {source}}, opts);
  }

  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override {
    check_tensor(output, "all_to_all_single");
    check_tensor(input, "all_to_all_single");
    check_same_type(output, input, "all_to_all_single");
    const auto sent = split_bytes(input, input_splits), received = split_bytes(output, output_splits);
    const bool is_even = output_splits.empty() && input_splits.empty();
    TORCH_CHECK_VALUE(!is_even || sent == received, "shmccl: all_to_all_single: tensors of ", input.sizes(), " and ", output.sizes());
    // One rank may name the sizes of its blocks, and another one none.
    auto made = exchange(data(input), data(output), sent, received);
    return run({"all_to_all_single", OpType::ALLTOALL_BASE, {made}, {output}, {input}}, opts);
  }

  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    auto token = at::zeros({1}, at::kByte);
    return run({"barrier", OpType::BARRIER, {meeting_point(token)}, {}, {token}}, opts);
  }

  // Names all ranks that have not come, on all that have, also without `wait_all_ranks`.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool) override {
    auto token = at::zeros({1}, at::kByte);
    auto work = pending({"monitored_barrier", OpType::BARRIER, {meeting_point(token)}, {}, {token}}, ++sequence_, opts.timeout);
    work->name_all();
    try {
      work->begin(false);
    } catch (const c10::Error& error) {
      const auto connection = current();
      const auto late = connection->stragglers();
      if (late.empty()) throw;
      const auto allowed = std::to_string(work->getTimeout().count());
      C10_THROW_ERROR(DistBackendError, "[Rank " + std::to_string(rank_) + "]: Rank" + connection->name_ranks(late) +
                                            " failed to pass monitoredBarrier in " + allowed + " ms: " + error.what_without_backtrace());
    }
  }

  // Collectives of lists ----------------------------------------------------------------------------------------------

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    const auto input = only_input(inputs, "all_gather");
    TORCH_CHECK_VALUE(outputs.size() == 1, "shmccl: all_gather takes one list of outputs");
    Job job{"all_gather", OpType::ALLGATHER, {}, outputs[0], {input}};
    gather_into(job, outputs[0], input, shmcclOpAllGather, 0);
    return run(std::move(job), opts);
  }

  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_), "shmccl: all_gather_coalesced needs a list for each rank");
    Job job{"all_gather_coalesced", OpType::ALLGATHER_COALESCED, {}, {}, inputs};
    for (size_t i = 0; i < inputs.size(); i++) {
      job.kept[i] = only_input({inputs[i]}, job.operation);
      Tensors targets;
      for (auto& list : outputs) targets.push_back(list.at(i));
      job.outputs.insert(job.outputs.end(), targets.begin(), targets.end());
      gather_into(job, targets, Tensor(job.kept[i]), shmcclOpAllGather, 0);
    }
    return run(std::move(job), opts);
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    const auto input = only_input(inputs, "gather");
    Job job{"gather", OpType::GATHER, {}, {}, {input}};
    if (is_root(opts, "gather")) {
      TORCH_CHECK_VALUE(outputs.size() == 1, "requires a single-element output list containing a list with ", size_, " tensors: gather");
      job.outputs = outputs[0];
      gather_into(job, outputs[0], input, shmcclOpGather, opts.rootRank);
    } else {
      TORCH_CHECK_VALUE(outputs.empty(), "requires empty output on non-root: gather");
      job.steps.push_back(step(shmcclOpGather, data(input), nullptr, input.nbytes(), opts.rootRank));
    }
    return run(std::move(job), opts);
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    const auto& output = only(outputs, "scatter");
    Tensors source;
    if (is_root(opts, "scatter")) {
      TORCH_CHECK_VALUE(inputs.size() == 1, "requires a single-element input list containing a list with ", size_, " tensors: scatter");
      check_list(inputs[0], output, size_, "scatter");
      source = {gathered(inputs[0])};
    } else {
      TORCH_CHECK_VALUE(inputs.empty(), "requires empty input on non-root: scatter");
    }
    auto made = step(shmcclOpScatter, source.empty() ? nullptr : data(source[0]), data(output), output.nbytes(), opts.rootRank);
    return run({"scatter", OpType::SCATTER, {made}, outputs, source}, opts);
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override {
    const auto& output = only(outputs, "reduce_scatter");
    TORCH_CHECK_VALUE(inputs.size() == 1, "shmccl: reduce_scatter takes one list of inputs");
    check_list(inputs[0], output, size_, "reduce_scatter");
    auto source = gathered(inputs[0]);
    auto made = reduce_scatter_step(output, source, opts, "reduce_scatter");
    return run({"reduce_scatter", OpType::REDUCE_SCATTER, {made}, outputs, {source}}, opts);
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    const auto count = static_cast<size_t>(size_);
    TORCH_CHECK_VALUE(outputs.size() == count && inputs.size() == count, "shmccl: all_to_all needs lists of ", size_, " tensors, not ",
                      inputs.size(), " and ", outputs.size());
    std::vector<size_t> sent, received;
    for (size_t i = 0; i < count; i++) {
      check_same_type(inputs[i], inputs[0], "all_to_all");
      check_same_type(outputs[i], inputs[0], "all_to_all");
      check_dense(inputs[i], "all_to_all");
      check_dense(outputs[i], "all_to_all");
      sent.push_back(inputs[i].nbytes());
      received.push_back(outputs[i].nbytes());
    }
    Job job{"all_to_all", OpType::ALLTOALL, {}, outputs};
    job.kept = {gathered(inputs), landing(outputs, job.after)};
    job.steps.push_back(exchange(data(job.kept[0]), data(job.kept[1]), sent, received));
    return run(std::move(job), opts);
  }

  // Messages ------------------------------------------------------------------------------------------------------------

  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    const auto& tensor = only(tensors, "send");
    auto made = step(shmcclOpSend, data(tensor), nullptr, tensor.nbytes(), destination);
    return message({"send", OpType::SEND, {made}, tensors}, tag);
  }

  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    const auto& tensor = only(tensors, "recv");
    auto made = step(shmcclOpRecv, nullptr, data(tensor), tensor.nbytes(), source);
    return message({"recv", OpType::RECV, {made}, tensors}, tag);
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    const auto& tensor = only(tensors, "recv");
    auto made = step(shmcclOpRecv, nullptr, data(tensor), tensor.nbytes(), SHMCCL_ANY_SOURCE);
    return message({"recv", OpType::RECVANYSOURCE, {made}, tensors}, tag);
  }

  // Calls that are put together -------------------------------------------------------------------------------------------

  // A block that an exception has left unended is forgotten: none of its operations has begun.
  void startCoalescing() override {
    blocks()[this] = pending({"coalesced", OpType::COALESCED}, sequence_ + 1, options_->timeout);
  }

  WorkPtr endCoalescing() override {
    const auto block = blocks().extract(this);
    TORCH_CHECK(block, "shmccl: the end of a coalescing block that was not begun");
    detach_inputs(block.mapped()->job(), rank_, size_);
    const auto& steps = block.mapped()->job().steps;
    if (!std::all_of(steps.begin(), steps.end(), [](const Step& step) { return step.is_message; })) sequence_++;
    block.mapped()->begin(true);
    return block.mapped();
  }

  // Life --------------------------------------------------------------------------------------------------------------------

  c10d::ErrorType getError() override {
    auto code = report().failed.load();
    if (code == shmcclSuccess) code = current()->ended().code;
    if (code == shmcclSuccess || report().aborted) return c10d::ErrorType::SUCCESS;
    return code == shmcclTimeout ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
  }

  // Calls the hooks, which failures do not: these are raised, and end nothing.
  void abort() override {
    report().aborted = true;
    report().call(report().on_abort);
    current()->revoke();
  }

  void shutdown() override { current()->close(); }

  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    onCompletionHook_ = hook;
    report().set(report().on_completion, kOnCompletion, SuccessHook([hook](const Pending& work) { hook(work.info()); }));
  }

  void waitForPendingWorks() override {
    auto connection = current();
    auto& report = connection->report();
    std::unique_lock<std::mutex> lock(report.mutex);
    await_change(lock, report.idle, [&] { return report.pending == 0; });
  }

  void enableCollectivesTiming() override { report().timed = true; }

  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override {
    const auto me = std::find(ranks.begin(), ranks.end(), rank_);
    if (me == ranks.end()) return nullptr;
    return merge(store, opts, static_cast<int>(me - ranks.begin()), static_cast<int>(ranks.size()));
  }

  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<Options>& opts,
                                    const int& rank, const int& size) override {
    const auto timeout = bounded(opts->timeout);
    return c10::make_intrusive<SharedBackend>(store, rank, size, timeout, opts->group_name, opts->global_ranks_in_group, place_, false,
                                              find_others(store, *opts, rank, size, timeout));
  }

  c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t>& excluded, int, const c10::intrusive_ptr<Options>& opts) override {
    const auto prefix = "shrunk/" + std::to_string(++derivations_);
    auto derived = c10::make_intrusive<Options>("shmccl", opts ? opts->timeout : options_->timeout);
    derived->group_name = name_ + "/" + prefix;
    std::vector<int> left;
    for (int rank = 0; rank < size_; rank++) {
      if (std::find(excluded.begin(), excluded.end(), rank) != excluded.end()) continue;
      left.push_back(rank);
      const auto& ranks = options_->global_ranks_in_group;
      derived->global_ranks_in_group.push_back(ranks.empty() ? static_cast<uint64_t>(rank) : ranks.at(rank));
    }
    auto made = split(c10::make_intrusive<c10d::PrefixStore>(prefix, store_), left, derived);
    TORCH_CHECK_VALUE(made, "shmccl: shrink is for the ranks that go on, and this one is excluded");
    return made;
  }

#ifdef C10D_BACKEND_HAS_HOOKS
  bool supportsAbortHooks() const { return true; }
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override { report().set(report().on_abort, id, std::move(hook)); }
  void unregisterAbortHook(int64_t id) override { report().set(report().on_abort, id, c10d::AbortHook()); }
#endif
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override {
    report().set(report().on_success, id, SuccessHook([hook](const Pending& work) {
      c10d::CompletionHookArgs args;
      args.completionKey = work.getCompletionKey();
      if (work.is_timed()) args.duration_ms = work.getDuration();
      hook(args);
    }));
  }
  void unregisterCompletionHook(int64_t id) override { report().set(report().on_success, id, SuccessHook()); }
#endif

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }

  // Names a meeting that this process hosts, the process, and where that is. The same until that meeting has been held.
  c10d::ReconfigureHandle get_reconfigure_handle() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (handle_.empty()) {
      shmcclUniqueId id;
      const auto code = table->GetUniqueId(&id);
      if (code != shmcclSuccess) raise(Failure::of(code), "get_reconfigure_handle");
      shmcclProcess_t process;
      table->GetProcess(&process);
      handle_ = std::string(id.internal) + "/" + process.internal + "@" + place_;
    }
    return handle_;
  }

  WorkPtr reconfigure(const c10d::ReconfigureOptions& opts) override {
    const auto handles = in_order(opts.handles);
    const auto me = std::find(handles.begin(), handles.end(), get_reconfigure_handle());
    TORCH_CHECK_VALUE(me != handles.end(), "shmccl: reconfigure: this rank's own handle is not among the ", handles.size(), " given");
    for (size_t i = 0; i < handles.size(); i++) check_place(handles[i], i);
    const auto before = current();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      TORCH_CHECK(used_.insert(opts.uuid).second, "shmccl: reconfigure: uuid ", opts.uuid, " was already used");
      rank_ = static_cast<int>(me - handles.begin());
      size_ = static_cast<int>(handles.size());
      if (rank_ == 0) handle_.clear();
      sequence_ = 0;
      connection_ = connection(opts.timeout.value_or(options_->timeout));
      connection_->report().adopt(before->report());
    }
    before->close();
    Meeting meeting{handles[0].substr(0, handles[0].find('/')), {}};
    for (const auto& handle : handles) {
      const auto begin = handle.find('/') + 1;
      meeting.processes.push_back(handle.substr(begin, handle.find('@') - begin));
    }
    current()->start(meeting);
    auto work = pending({"reconfigure", OpType::UNKNOWN}, 0, options_->timeout);
    work->begin(false);
    return work;
  }
#endif

#ifdef C10D_BACKEND_HAS_WINDOW
  bool supportsWindow() const override { return size_ > 1; }
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<Tensor>& tensor) override {
    auto window = c10::make_intrusive<SharedWindow>(current());
    if (tensor) window->tensor_register(*tensor, true);
    return window;
  }
#endif

  // Memory ------------------------------------------------------------------------------------------------------------------

  // Memory of DistributedDataParallel's buckets. Of complex numbers it has pairs of real ones there.
  Tensor allocateTensor(long count, at::TensorOptions options) override {
    const auto type = options.dtype().toScalarType();
    if (!at::isComplexType(type)) return heap_tensor(count, options);
    return heap_tensor(2 * count, options.dtype(c10::toRealValueType(type)));
  }

  // A tensor in this rank's heap, or an ordinary one where that is full or the type is one that needs more than memory.
  Tensor heap_tensor(long count, const at::TensorOptions& options) {
    TORCH_CHECK_VALUE(count >= 0, "shmccl: allocate_tensor of ", count, " elements");
    TORCH_CHECK_VALUE(options.device().is_cpu(), "shmccl: allocate_tensor gives memory of the CPU");
    uint64_t bytes = 0;
    const bool is_counted = !c10::mul_overflows(static_cast<uint64_t>(count), uint64_t{options.dtype().itemsize()}, &bytes);
    auto connection = current();
    const bool is_plain = is_counted && !at::isQIntType(options.dtype().toScalarType());
    void* memory = is_plain ? connection->allocate(bytes) : nullptr;
    if (!memory) {
      connection->ordinary_tensors++;
      return at::empty({count}, options);
    }
    connection->heap_tensors++;
    connection->heap_bytes += bytes;
    auto release = [connection, bytes](void* memory) {
      connection->heap_tensors--;
      connection->heap_bytes -= bytes;
      if (connection->is_here()) table->MemFree(memory);
    };
    return lent(memory, {count}, release, options);
  }

  // Torch before 2.14 has no such method.
  std::unordered_map<std::string, uint64_t> getMemoryStats() {
    const auto used = current();
    return {{"heap_bytes", used->heap_bytes}, {"heap_tensors", used->heap_tensors}, {"ordinary_tensors", used->ordinary_tensors}};
  }

  bool holds(const Tensor& tensor) const { return tensor.nbytes() > 0 && current()->locate(tensor).has_value(); }

 private:
  // The id of the one hook that torch does not number.
  static constexpr int64_t kOnCompletion = -1;

  // Waits until the ranks of a new group have found each other by its store.
  Meeting find_others(const c10::intrusive_ptr<c10d::Store>& store, const Options& opts, int rank, int size, milliseconds timeout) const {
    py::gil_scoped_acquire gil;
    const auto come = py::module_::import("shmccl.torch._meeting").attr("come_here");
    const auto found = come(store, opts.group_name, rank, size, timeout, opts.global_ranks_in_group, place_);
    return {found.attr("id").cast<std::string>(), found.attr("processes").cast<std::vector<std::string>>()};
  }

  ConnectionPtr connection(milliseconds timeout) const {
    // reconfigure() gives ranks other numbers.
    const auto& numbers = options_->global_ranks_in_group;
    const auto known = numbers.size() == static_cast<size_t>(size_) && used_.empty() ? numbers : std::vector<uint64_t>();
    return std::make_shared<Connection>(ConnectionOptions{name_, rank_, size_, timeout, known});
  }

  ConnectionPtr current() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return connection_;
  }

  Report& report() const { return current()->report(); }

  // The coalescing blocks that this thread has begun.
  static std::map<const SharedBackend*, c10::intrusive_ptr<Pending>>& blocks() {
    static thread_local std::map<const SharedBackend*, c10::intrusive_ptr<Pending>> begun;
    return begun;
  }

  template <class Options>
  bool is_root(const Options& opts, const char* operation) const {
    TORCH_CHECK_VALUE(opts.rootRank >= 0 && opts.rootRank < size_, "shmccl: ", operation, ": root ", opts.rootRank,
                      " is no rank of a group of ", size_);
    return opts.rootRank == rank_;
  }

  static void check_pairs(const Job& job) {
    TORCH_CHECK_VALUE(job.outputs.size() == job.kept.size(), "shmccl: ", job.operation, " needs as many outputs as inputs");
  }

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  static std::vector<std::string> in_order(const std::variant<std::unordered_set<std::string>, std::vector<std::string>>& handles) {
    if (const auto* ordered = std::get_if<std::vector<std::string>>(&handles)) return *ordered;
    const auto& all = std::get<std::unordered_set<std::string>>(handles);
    std::vector<std::string> sorted(all.begin(), all.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }

  // Whether no word of two places is known to differ. One that a rank could not find out ends in a question mark.
  static bool may_share(const std::string& one, const std::string& other) {
    std::istringstream words(one), others(other);
    for (std::string word, with;;) {
      const bool is_more = static_cast<bool>(words >> word);
      if (is_more != static_cast<bool>(others >> with)) return false;
      if (!is_more) return true;
      if (word != with && word.back() != '?' && with.back() != '?') return false;
    }
  }

  void check_place(const std::string& handle, size_t peer) const {
    const auto at = handle.find('@');
    TORCH_CHECK_VALUE(at != std::string::npos && handle.find('/') < at, "shmccl: reconfigure: '", handle, "' is no handle of this backend");
    TORCH_CHECK_VALUE(may_share(handle.substr(at + 1), place_), "shmccl: reconfigure: rank ", peer,
                      " cannot share memory with this one: it is at [", handle.substr(at + 1), "], this one at [", place_, "]");
  }
#endif

  std::vector<size_t> split_bytes(const Tensor& tensor, const std::vector<int64_t>& splits) const {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    std::vector<int64_t> counts = splits;
    if (counts.empty()) {
      TORCH_CHECK_VALUE(rows % size_ == 0, "shmccl: all_to_all_single: ", rows, " rows do not divide equally among ", size_, " ranks");
      counts.assign(size_, rows / size_);
    }
    TORCH_CHECK_VALUE(counts.size() == static_cast<size_t>(size_), "Number of tensor splits not equal to group size: all_to_all_single");
    TORCH_CHECK_VALUE(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == rows,
                      "Split sizes doesn't match total dim 0 size: all_to_all_single");
    const size_t row = rows ? tensor.nbytes() / rows : 0;
    std::vector<size_t> bytes;
    for (auto count : counts) {
      TORCH_CHECK_VALUE(count >= 0, "shmccl: all_to_all_single: a split of ", count);
      bytes.push_back(static_cast<size_t>(count) * row);
    }
    return bytes;
  }

  template <class Options>
  static Step all_reduce_step(const Tensor& tensor, const Options& opts) {
    check_tensor(tensor, "all_reduce");
    return reduction(shmcclOpAllReduce, data(tensor), data(tensor), tensor, opts.reduceOp, "all_reduce");
  }

  // Lets a job gather `input` of all ranks into one tensor.
  void append_all_gather(Job& job, const Tensor& output, const Tensor& input) const {
    check_dense(output, job.operation);
    const auto source = in_one_piece(input, job.operation);
    const auto target = output.is_contiguous() ? output : landing({output}, job.after);
    check_blocks(target, source, size_, job.operation);
    job.steps.push_back(step(shmcclOpAllGather, data(source), data(target), source.nbytes()));
    job.kept.push_back(source);
  }

  Step reduce_scatter_step(const Tensor& output, const Tensor& input, const c10d::ReduceScatterOptions& opts, const char* operation) const {
    check_blocks(input, output, size_, operation);
    return reduction(shmcclOpReduceScatter, data(input), data(output), output, opts.reduceOp, operation);
  }

  // Lets a job gather `input` of all ranks into a list.
  void gather_into(Job& job, const Tensors& list, const Tensor& input, shmcclOperation_t operation, int root) const {
    check_list(list, input, size_, job.operation);
    const auto target = landing(list, job.after);
    job.steps.push_back(step(operation, data(input), data(target), input.nbytes(), root));
    job.kept.push_back(target);
  }

  c10::intrusive_ptr<Pending> pending(Job job, uint64_t sequence, milliseconds timeout) const {
    return c10::make_intrusive<Pending>(current(), std::move(job), sequence, timeout == c10d::kUnsetTimeout ? options_->timeout : timeout);
  }

  WorkPtr message(Job job, int tag) {
    auto& made = job.steps[0];
    const int peer = made.call.peer;
    TORCH_CHECK_VALUE(tag >= 0, "shmccl: ", job.operation, ": a tag is not negative, and ", tag, " is");
    TORCH_CHECK_VALUE(size_ > 1, "shmccl: ", job.operation, ": a group of one has nobody to talk to");
    TORCH_CHECK_VALUE(peer == SHMCCL_ANY_SOURCE || (peer >= 0 && peer < size_ && peer != rank_), "shmccl: ", job.operation, ": ", peer,
                      " is no other rank of a group of ", size_);
    made.is_message = true;
    made.call.tag = tag;
    return run(std::move(job), options_->timeout, true);
  }

  template <class Options>
  WorkPtr run(Job job, const Options& opts) {
    return run(std::move(job), opts.timeout, opts.asyncOp);
  }

  // Begins a job, or adds it to the block that this thread has begun.
  WorkPtr run(Job job, milliseconds timeout, bool is_async) {
    const auto block = blocks().find(this);
    if (block != blocks().end()) {
      block->second->job().append(std::move(job));
      return block->second;
    }
    detach_inputs(job, rank_, size_);
    const uint64_t sequence = c10d::isP2POp(job.type) ? sequence_.load() : ++sequence_;
    auto work = pending(std::move(job), sequence, timeout);
    work->begin(is_async);
    return work;
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string place_;
  const std::string name_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<int> derivations_{0};

  // Guards what reconfigure() changes.
  mutable std::mutex mutex_;
  ConnectionPtr connection_;
  mutable std::string handle_;
  std::set<int64_t> used_;
};

void load(const py::capsule& capsule) {
  const auto* given = static_cast<const shmcclTable*>(capsule.get_pointer());
  TORCH_CHECK(given->version == SHMCCL_TABLE_VERSION && given->size >= sizeof(shmcclTable),
              "shmccl: the engine's function table has version ", given->version, " and ", given->size,
              " bytes, and this shim was compiled for version ", SHMCCL_TABLE_VERSION, " and ", sizeof(shmcclTable),
              " bytes; rebuild it: python -m shmccl.torch build");
  const auto begin = [] { starting->lock(); };
  const auto end = [] { starting->unlock(); };
  static const int failed = pthread_atfork(begin, end, [] {
    forks++;
    starting = new std::mutex();
    // What threads of the parent do is none of the child's.
    gate = new Gate();
    callers = new Callers();
  });
  TORCH_CHECK(failed == 0, "shmccl: cannot ask to be told of forks: ", std::strerror(failed));
  table = given;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("load", &load);
  module.def("shut", [] { gate->shut(); }, py::call_guard<py::gil_scoped_release>());
  py::class_<SharedBackend, c10d::Backend, c10::intrusive_ptr<SharedBackend>>(module, "SharedBackend")
      .def(py::init([](c10::intrusive_ptr<c10d::Store> store, int rank, int size, milliseconds timeout, std::string name,
                       std::vector<uint64_t> ranks, std::string place, bool reconfigurable, std::string id,
                       std::vector<std::string> processes) {
             return c10::make_intrusive<SharedBackend>(std::move(store), rank, size, timeout, std::move(name), std::move(ranks),
                                                       std::move(place), reconfigurable,
                                                       Meeting{std::move(id), std::move(processes)});
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"), py::arg("ranks"),
           py::arg("place"), py::arg("reconfigurable"), py::arg("id") = "", py::arg("processes") = std::vector<std::string>(),
           py::call_guard<py::gil_scoped_release>())
      .def("holds", &SharedBackend::holds)
      .def("allocate_tensor",
           [](SharedBackend& self, long count, at::ScalarType type, at::Device device) {
             return self.heap_tensor(count, at::TensorOptions().dtype(type).device(device));
           },
           py::arg("size"), py::kw_only(), py::arg("dtype"), py::arg("device"), py::call_guard<py::gil_scoped_release>())
      .def("memory_stats", &SharedBackend::getMemoryStats);
}
