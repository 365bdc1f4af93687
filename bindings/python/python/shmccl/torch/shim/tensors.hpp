// Tensors as operands: what a call takes, and in which memory it lies.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <functional>
#include <utility>

#include "table.hpp"

namespace shim {

inline void check_dense(const Tensor& tensor, const char* operation) {
  TORCH_CHECK(tensor.layout() == at::kStrided, "shmccl: ", operation, " takes no sparse tensors; use to_dense()");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "shmccl: ", operation, " takes tensors on the CPU, not on ", tensor.device());
}

inline void check_tensor(const Tensor& tensor, const char* operation) {
  check_dense(tensor, operation);
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "Tensors must be contiguous: ", operation);
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), "shmccl: ", operation, " needs resolve_conj() and resolve_neg()");
}

inline const Tensor& only(const Tensors& tensors, const char* operation) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "shmccl: ", operation, " takes one tensor per rank, not ", tensors.size());
  check_tensor(tensors[0], operation);
  return tensors[0];
}

// An input as the engine reads it. One that does not lie in one piece is copied.
inline Tensor in_one_piece(const Tensor& input, const char* operation) {
  check_dense(input, operation);
  auto read = input.contiguous();
  check_tensor(read, operation);
  return read;
}

inline Tensor only_input(const Tensors& inputs, const char* operation) {
  TORCH_CHECK_VALUE(inputs.size() == 1, "shmccl: ", operation, " takes one tensor per rank, not ", inputs.size());
  return in_one_piece(inputs[0], operation);
}

inline void check_same_type(const Tensor& a, const Tensor& b, const char* operation) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), "shmccl: ", operation, ": input is ", b.scalar_type(), ", output ",
                   a.scalar_type());
}

inline void check_blocks(const Tensor& whole, const Tensor& block, int size, const char* operation) {
  check_tensor(whole, operation);
  check_tensor(block, operation);
  check_same_type(whole, block, operation);
  TORCH_CHECK_VALUE(whole.numel() == block.numel() * size, "shmccl: ", operation, " needs ", block.numel() * size,
                    " elements in the larger tensor, which has ", whole.numel());
}

// Checks a list with a tensor for each rank, all like `like`.
inline void check_list(const Tensors& list, const Tensor& like, int size, const char* operation) {
  TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size), "shmccl: ", operation, " needs a list of ", size,
                    " tensors, not ", list.size());
  for (const auto& tensor : list) {
    check_same_type(tensor, like, operation);
    TORCH_CHECK_VALUE(tensor.numel() == like.numel(), "shmccl: ", operation, ": tensors of the list differ in size");
    check_dense(tensor, operation);
  }
}

// The tensors of a list that lie one behind the other as one, undefined where they do not.
inline Tensor as_one(const Tensors& list) {
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
inline Tensor gathered(const Tensors& list) {
  auto whole = as_one(list);
  if (whole.defined()) return whole;
  Tensors flat;
  for (const auto& tensor : list) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

// A tensor in memory that torch has not allocated. Its storage grows as any other does: into memory of torch's own.
inline Tensor lent(void* memory, at::IntArrayRef sizes, std::function<void(void*)> release, const at::TensorOptions& options) {
  return at::for_blob(memory, sizes)
      .deleter(std::move(release))
      .options(options)
      .resizeable_storage()
      .allocator(c10::GetCPUAllocator())
      .make_tensor();
}

using Actions = std::vector<std::function<void()>>;

// Memory in one piece for the results of a list: where that lies, or a tensor that `after` copies into it.
inline Tensor landing(const Tensors& list, Actions& after) {
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

}  // namespace shim
