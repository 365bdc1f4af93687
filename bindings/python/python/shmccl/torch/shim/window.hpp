// Windows, and the works of their signals.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

#include "pending.hpp"

namespace shim {

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
    // No put is under way when all ranks have come here.
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

  // The place of a rank's tensor in its heap, and its count and type.
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

}  // namespace shim
