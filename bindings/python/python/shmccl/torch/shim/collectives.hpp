// The collectives and messages of c10d as jobs.
#pragma once

#include <torch/version.h>

#include <numeric>
#include <string>
#include <utility>

#include "group.hpp"

namespace shim {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
constexpr auto kAllGatherCoalesced = OpType::COALESCED;
#else
constexpr auto kAllGatherCoalesced = OpType::ALLGATHER_INTO_TENSOR_COALESCED;
#endif

class Collectives : public Group {
 public:
  using Group::Group;

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

 private:
  static void check_pairs(const Job& job) {
    TORCH_CHECK_VALUE(job.outputs.size() == job.kept.size(), "shmccl: ", job.operation, " needs as many outputs as inputs");
  }

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
};

}  // namespace shim
