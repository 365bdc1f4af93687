// A rank of a process group: its connection, and how it begins jobs, alone or in a block.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "overlaps.hpp"
#include "pending.hpp"

namespace shim {

class Group : public c10d::Backend {
 public:
  Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, milliseconds timeout, std::string name,
        std::vector<uint64_t> ranks, std::string place, bool reconfigurable, Meeting meeting)
      : Backend(rank, size), store_(std::move(store)), place_(std::move(place)), name_(std::move(name)),
        options_(c10::make_intrusive<Options>("shmccl", bounded(timeout))) {
    options_->group_name = name_;
    options_->global_ranks_in_group = std::move(ranks);
    connection_ = connection(timeout);
    if (!reconfigurable) connection_->start(meeting);
  }

  const std::string getBackendName() const override { return "shmccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

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

 protected:
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

  template <class Options>
  bool is_root(const Options& opts, const char* operation) const {
    TORCH_CHECK_VALUE(opts.rootRank >= 0 && opts.rootRank < size_, "shmccl: ", operation, ": root ", opts.rootRank,
                      " is no rank of a group of ", size_);
    return opts.rootRank == rank_;
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

  // Guards what reconfigure() changes.
  mutable std::mutex mutex_;
  ConnectionPtr connection_;
  std::set<int64_t> used_;

 private:
  // The coalescing blocks that this thread has begun.
  static std::map<const Group*, c10::intrusive_ptr<Pending>>& blocks() {
    static thread_local std::map<const Group*, c10::intrusive_ptr<Pending>> begun;
    return begun;
  }
};

}  // namespace shim
