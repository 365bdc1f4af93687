// A process group of torch.distributed over the engine's function table (`shmccl.h`).
//
// torch knows `Backend`, which turns each call of c10d into calls of the table and returns a `Pending`, and
// `SharedWindow`. The library links to torch only: `shmccl._core` hands it the table. No engine logic stands here.
//
// * A `Connection` is one meeting of the ranks: two communicators, so that messages never queue behind collectives.
//   A thread makes it while the program goes on; whoever needs it first waits for it. Works and tensors keep it alive.
// * A synchronous call runs on the caller's thread. An asynchronous one is queued: nothing that may wait runs inline,
//   and `wait` takes over what the engine's worker has not begun.
// * The engine calls `Pending::ended` once for each queued operation, on any thread, without the GIL. Functions of the
//   program are not called there: `Callers` has threads for them, on which nothing else depends.
// * Once the interpreter ends, no thread of the library drops or calls what is Python's: see `Gate`.
// * A child of a fork touches nothing of the parent's engine.
//
// This file is compiled as one with all others of the folder. A file includes only those below it:
//
//   module       what Python sees: the table comes in, the backend goes out
//   backend      the process group: its life, hooks, windows and memory
//   window       windows, and the works of their signals
//   collectives  calls of c10d as jobs
//   group        a rank of a process group, which begins jobs
//   pending      the work of a job
//   connection   one meeting of the ranks
//   report       what works report: counts, the first failure, hooks
//   overlaps     inputs that a job would write before it has read them
//   steps        what a job asks of the engine
//   types        the engine's numbers of types and operators
//   tensors      tensors as operands
//   callers      threads for functions of the program
//   failure      failures and signals as exceptions
//   gate         forks, threads, and the end of the interpreter
//   table        the engine's functions

#include <torch/version.h>

#include <pthread.h>

#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend.hpp"

// Lets a loader read the torch version without loading the library.
extern "C" __attribute__((used, visibility("default"))) const char shmccl_shim_torch[] = "SHMCCL_SHIM_TORCH=" TORCH_VERSION;

namespace shim {

static void load(const py::capsule& capsule) {
  const auto* given = static_cast<const shmcclTable*>(capsule.get_pointer());
  TORCH_CHECK(given->version == SHMCCL_TABLE_VERSION && given->size >= sizeof(shmcclTable),
              "shmccl: the engine's function table has version ", given->version, " and ", given->size,
              " bytes, and this shim was compiled for version ", SHMCCL_TABLE_VERSION, " and ", sizeof(shmcclTable),
              " bytes; rebuild it: python -m shmccl.torch build");
  const auto begin = [] { starting->lock(); };
  const auto end = [] { starting->unlock(); };
  static const int failed = pthread_atfork(begin, end, [] {
    forks++;
    starting = new std::mutex();
    // The child has none of the parent's threads.
    gate = new Gate();
    callers = new Callers();
  });
  TORCH_CHECK(failed == 0, "shmccl: cannot ask to be told of forks: ", std::strerror(failed));
  table = given;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("load", &load);
  module.def("shut", [] { gate->shut(); }, py::call_guard<py::gil_scoped_release>());
  py::class_<SharedBackend, c10d::Backend, c10::intrusive_ptr<SharedBackend>>(module, "SharedBackend")
      .def(py::init([](c10::intrusive_ptr<c10d::Store> store, int rank, int size, milliseconds timeout, std::string name,
                       std::vector<uint64_t> ranks, std::string place, bool reconfigurable, std::string id,
                       std::vector<std::string> processes) {
             return c10::make_intrusive<SharedBackend>(std::move(store), rank, size, timeout, std::move(name), std::move(ranks),
                                                       std::move(place), reconfigurable,
                                                       Meeting{std::move(id), std::move(processes)});
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"), py::arg("ranks"),
           py::arg("place"), py::arg("reconfigurable"), py::arg("id") = "", py::arg("processes") = std::vector<std::string>(),
           py::call_guard<py::gil_scoped_release>())
      .def("holds", &SharedBackend::holds)
      .def("allocate_tensor",
           [](SharedBackend& self, long count, at::ScalarType type, at::Device device) {
             return self.heap_tensor(count, at::TensorOptions().dtype(type).device(device));
           },
           py::arg("size"), py::kw_only(), py::arg("dtype"), py::arg("device"), py::call_guard<py::gil_scoped_release>())
      .def("memory_stats", &SharedBackend::getMemoryStats);
}

}  // namespace shim
