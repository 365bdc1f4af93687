// The engine's table of functions, and names of torch that all files use.
#pragma once

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <vector>

#include "shmccl.h"

namespace shim {

namespace py = pybind11;
using at::Tensor;
using c10d::OpType;
using c10d::Work;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Tensors = std::vector<Tensor>;
using WorkPtr = c10::intrusive_ptr<Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// Given by `shmccl._core` before anything else is called.
inline const shmcclTable* table = nullptr;

}  // namespace shim
