// What a call of c10d asks of the engine.
#pragma once

#include <c10/util/SmallVector.h>

#include <array>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>

#include "tensors.hpp"
#include "types.hpp"

namespace shim {

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
  // The actions that are left when the data are there.
  Actions after;

  void append(Job&& other) {
    std::move(other.steps.begin(), other.steps.end(), std::back_inserter(steps));
    outputs.insert(outputs.end(), other.outputs.begin(), other.outputs.end());
    kept.insert(kept.end(), other.kept.begin(), other.kept.end());
    std::move(other.after.begin(), other.after.end(), std::back_inserter(after));
  }
};

inline Step step(shmcclOperation_t operation, const void* send, void* recv, size_t bytes, int root = 0) {
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
inline Step reduction(shmcclOperation_t operation, const void* send, void* recv, const Tensor& like, const c10d::ReduceOp& op,
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

inline std::vector<size_t> offsets_of(const std::vector<size_t>& counts) {
  std::vector<size_t> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), size_t{0});
  return offsets;
}

// Makes a step that exchanges blocks of these lengths, which lie one behind the other.
inline Step exchange(const void* send, void* recv, const std::vector<size_t>& sent, const std::vector<size_t>& received) {
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
inline Step meeting_point(const Tensor& token) {
  auto made = step(shmcclOpAllReduce, token.const_data_ptr(), token.mutable_data_ptr(), 1);
  made.call.op = shmcclMax;
  return made;
}

// The memory of a tensor. The front end counts versions; the bytes are the engine's for the time of the call.
inline void* data(const Tensor& tensor) { return tensor.mutable_data_ptr(); }

// Does a step in a group of one.
inline void run_alone(const Step& step) {
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

}  // namespace shim
