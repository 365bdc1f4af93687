// The process group: its life, hooks, windows and memory.
#pragma once

#include <c10/util/safe_numerics.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

#include "collectives.hpp"
#include "window.hpp"

namespace shim {

class SharedBackend : public Collectives {
 public:
  using Collectives::Collectives;

  ~SharedBackend() override { current()->abandon(); }

  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const override { return true; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return size_ > 1; }
  void setTimeout(milliseconds timeout) override {
    options_->timeout = bounded(timeout);
    current()->set_timeout(timeout);
  }
  // Torch before 2.14 does not ask.
  void addEphemeralTimeout(const milliseconds& timeout) { report().extra += bounded(timeout).count(); }

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

  std::atomic<int> derivations_{0};
  // `mutex_` guards it.
  mutable std::string handle_;
};

}  // namespace shim
