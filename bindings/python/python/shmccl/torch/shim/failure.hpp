// Failures of the engine and signals as exceptions, and time-outs.
#pragma once

#include <c10/util/Logging.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>

#include "gate.hpp"

namespace shim {

struct Failure {
  shmcclResult_t code = shmcclSuccess;
  // Names the rank, where there is one.
  std::string text;
  // The rank that has failed, as the group numbers it, or -1.
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
[[noreturn]] inline void raise_interrupt() {
  py::gil_scoped_acquire gil;
  if (!PyErr_Occurred()) {
    py::module_::import("shmccl._core").attr("raise_interrupt")();
    PyErr_SetNone(PyExc_KeyboardInterrupt);
  }
  throw py::error_already_set();
}

[[noreturn]] inline void raise(const Failure& failure, const std::string& what) {
  if (failure.code == shmcclInterrupted) raise_interrupt();
  const std::string text = "shmccl: " + what + ": " + failure.text;
  if (failure.code == shmcclInvalidArgument) C10_THROW_ERROR(ValueError, text);
  C10_THROW_ERROR(DistBackendError, text);
}

// Runs the handlers of signals that have come, where this thread may. Nonzero: one has raised an exception.
inline int signals_raised() {
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

// torch makes a negative number of a time-out that it has no room for.
inline milliseconds bounded(milliseconds timeout) { return timeout.count() < 0 ? kNever : std::min(timeout, kNever); }

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

}  // namespace shim
