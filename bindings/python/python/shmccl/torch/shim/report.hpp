// What the works of a group report to: counts, the first failure, and hooks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "failure.hpp"

namespace shim {

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

}  // namespace shim
