// Inputs that a job would write before it has read them.
#pragma once

#include <algorithm>
#include <numeric>

#include "steps.hpp"

namespace shim {

// Bytes that a step reads or writes.
struct Span {
  const char* begin = nullptr;
  size_t bytes = 0;

  const char* end() const { return begin + bytes; }
};

inline size_t total(const std::vector<size_t>& counts) { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }

inline Span input_of(const Step& step, size_t size) {
  const auto& call = step.call;
  const bool is_whole = call.operation == shmcclOpReduceScatter || call.operation == shmcclOpScatter;
  const size_t bytes = step.blocks ? total((*step.blocks)[0]) : step.bytes * (is_whole ? size : 1);
  return {static_cast<const char*>(call.sendbuff), call.sendbuff ? bytes : 0};
}

inline Span output_of(const Step& step, size_t size) {
  const auto& call = step.call;
  const bool is_whole = call.operation == shmcclOpAllGather || call.operation == shmcclOpGather;
  const size_t bytes = step.blocks ? total((*step.blocks)[2]) : step.bytes * (is_whole ? size : 1);
  return {static_cast<const char*>(call.recvbuff), call.recvbuff ? bytes : 0};
}

inline bool overlap(const Span& a, const Span& b) { return a.bytes && b.bytes && a.begin < b.end() && b.begin < a.end(); }

// Whether a step is in place, as the engine has it: both buffers are one, or one is the rank's block of the other.
inline bool is_in_place(const Step& step, const Span& input, const Span& output, size_t rank) {
  if (step.blocks && (*step.blocks)[0] != (*step.blocks)[2]) return false;
  if (input.bytes == output.bytes) return input.begin == output.begin;
  if (input.bytes < output.bytes) return input.begin == output.begin + rank * input.bytes;
  return output.begin == input.begin + rank * output.bytes;
}

// The memory that the steps of a job write.
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
inline void detach_inputs(Job& job, int rank, int size) {
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

}  // namespace shim
