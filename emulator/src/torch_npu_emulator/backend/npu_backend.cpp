// The "npu" device of the emulator: torch's PrivateUse1 backend on host memory.
//
// Built as a plain shared library on torch's C++ API (no Python headers needed), loaded by torch.ops.load_library;
// Python steers it through the C functions at the end.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <pthread.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "alias.h"
#include "capture.h"
#include "counters.h"
#include "device.h"
#include "fallback.h"
#include "streams.h"
#include "task_update.h"

namespace npu_emulator {
C10_REGISTER_GUARD_IMPL(PrivateUse1, NpuGuard)

namespace {

void set_current(std::optional<at::Device> device) {
  if (device && device->has_index()) current_device = checked_index(device->index());
}

class CurrentDevice {
 public:
  explicit CurrentDevice(std::optional<at::Device> device) : old_(current_device) { set_current(device); }
  ~CurrentDevice() { current_device = old_; }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  c10::DeviceIndex old_;
};

void check_strided(std::optional<at::Layout> layout) {
  TORCH_CHECK(!layout || *layout == c10::kStrided, "the emulated NPU holds strided tensors only, asked for layout ",
              *layout);
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  check_strided(layout);
  TORCH_CHECK(!pin_memory.value_or(false), "only host memory can be pinned, asked for pinned memory on npu");
  const CurrentDevice guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &npu_allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype),
                                   memory_format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  check_strided(layout);
  TORCH_CHECK(!pin_memory.value_or(false), "only host memory can be pinned, asked for pinned memory on npu");
  const CurrentDevice guard(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &npu_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           offset ? std::make_optional(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat> memory_format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), memory_format);
}

void copy_and_count(const at::Tensor& target, const at::Tensor& source, bool from_npu, bool to_npu) {
  // What crosses the bus is what the side that sends has: a broadcast or a cast happens on the other side.
  const auto bytes = static_cast<int64_t>(source.nbytes());
  auto& count = !from_npu ? counters.host_to_device : to_npu ? counters.device_to_device : counters.device_to_host;
  auto& total = !from_npu ? counters.host_to_device_bytes
                : to_npu  ? counters.device_to_device_bytes
                          : counters.device_to_host_bytes;
  ++count;
  total += bytes;
  target.copy_(source);
}

// A copy in a graph reads its source when it is replayed; memory of the host is kept until then.
void capture_copy(const at::Tensor& self, const at::Tensor& destination, bool from_npu, bool non_blocking) {
  if (!is_npu(destination)) refuse_in_capture("a copy from the device to the host");
  if (!from_npu && !non_blocking) refuse_in_capture("a copy from the host to the device that is not non_blocking");
  auto& tape = captured_tape();
  const auto by_address = [&tape](const at::Tensor& tensor) {
    const auto& storage = tensor.storage();
    return tensor_on(tape.host_storage(block_of(storage), storage.nbytes()), tensor, c10::DispatchKey::CPU);
  };
  Node node{Node::Kind::kWork, "copy"};
  node.work = [target = by_address(destination), source = from_npu ? by_address(self) : self, from_npu] {
    copy_and_count(target, source, from_npu, /*to_npu=*/true);
  };
  capture_node(std::move(node));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  const bool from_npu = is_npu(self), to_npu = is_npu(destination);
  refuse_in_update("a copy");
  if (capturing()) {
    capture_copy(self, destination, from_npu, non_blocking);
    return destination;
  }
  if (from_npu && to_npu) {
    require_running(current_stream(), "a copy on the device");
  } else if (non_blocking) {
    require_running(current_stream(), "a copy");
  } else {
    // The host waits until the copy is done, and so for all that the stream did before.
    wait_for_stream(current_stream(), from_npu ? "a copy from the device to the host" : "a copy from the host to the device");
  }
  copy_and_count(to_npu ? to_cpu_alias(destination) : destination, from_npu ? to_cpu_alias(self) : self, from_npu, to_npu);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  if (destination.sizes() != self.sizes()) destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  wait_for_stream(current_stream(), "reading a number from the device (item)");
  ++counters.device_to_host;
  counters.device_to_host_bytes += static_cast<int64_t>(self.itemsize());
  return at::_local_scalar_dense(to_cpu_alias(self));
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) { return at::native::set_tensor_(self, source); }

at::Tensor& set_storage(at::Tensor& self, at::Storage source) { return at::native::set_(self, std::move(source)); }

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                               c10::SymIntArrayRef stride) {
  return at::cpu::set_(self, std::move(source), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size),
                       C10_AS_INTARRAYREF_SLOW(stride));
}

// Memory is reused by the host's allocator only after its last owner is gone, and nothing runs later than its call.
void record_stream(at::Tensor&, c10::Stream) {}

at::Tensor host_alias(const at::Tensor& self) { return to_cpu_alias(self); }

std::string counters_json() {
  std::ostringstream out;
  int64_t allocated = 0, peak = 0;
  for (const auto& use : memory_use) {
    allocated += use.allocated;
    peak += use.peak;
  }
  out << "{\"launches\":{";
  const char* comma = "";
  for (const auto& [name, count] : counters.launches()) {
    out << comma << '"' << name << "\":" << count;
    comma = ",";
  }
  out << "},\"copies\":{\"device_to_host\":" << counters.device_to_host
      << ",\"device_to_host_bytes\":" << counters.device_to_host_bytes
      << ",\"host_to_device\":" << counters.host_to_device
      << ",\"host_to_device_bytes\":" << counters.host_to_device_bytes
      << ",\"device_to_device\":" << counters.device_to_device
      << ",\"device_to_device_bytes\":" << counters.device_to_device_bytes
      << "},\"kv_bytes\":{\"token\":" << counters.kv_token_bytes << ",\"page\":" << counters.kv_page_bytes
      << "},\"synchronizes\":" << counters.synchronizes
      << ",\"implicit_synchronizes\":" << counters.implicit_synchronizes
      << ",\"graphs\":{\"captures\":" << counters.graph_captures << ",\"replays\":" << counters.graph_replays
      << ",\"task_updates\":" << counters.task_updates << "},\"memory\":{\"allocated\":" << allocated
      << ",\"peak\":" << peak << "}}";
  return out.str();
}

// Collectives on npu tensors run on their CPU aliases, which gloo understands. torch has kernels for them that hand npu
// tensors to the process group as they are; replacing those is the point, so that torch's warning about it is dropped.
void bind_collectives() {
  struct Silent final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static torch::Library library(torch::Library::IMPL, "c10d", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const char* name :
       {"allreduce_", "allreduce_coalesced_", "allgather_", "_allgather_base_", "allgather_into_tensor_coalesced_",
        "allgather_coalesced_", "broadcast_", "reduce_", "reduce_scatter_", "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "send", "recv_",
        "recv_any_source_", "barrier"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

}  // namespace
}  // namespace npu_emulator

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace npu_emulator;
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &npu_emulator::empty_strided);
  m.impl("as_strided", &npu_emulator::as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m.impl("record_stream", &record_stream);
}

// A copy reads views that are conjugated or negated as they are; torch would copy them first, by this very operator.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&npu_emulator::run_on_cpu>());
}

TORCH_LIBRARY_FRAGMENT(npu_emulator, m) { m.def("host_alias(Tensor self) -> Tensor"); }
TORCH_LIBRARY_IMPL(npu_emulator, PrivateUse1, m) { m.impl("host_alias", &npu_emulator::host_alias); }

// ---- what Python calls, through ctypes ------------------------------------------------------------------------

using npu_emulator::checked_index;
using npu_emulator::counters;
using npu_emulator::memory_use;

extern "C" {

// Once, before the first npu tensor.
void npu_emulator_init(int devices, int64_t bytes_per_device) {
  npu_emulator::device_count = devices;
  npu_emulator::device_bytes = bytes_per_device;
  c10::SetAllocator(npu_emulator::kNpu, &npu_emulator::npu_allocator);
  static npu_emulator::NpuHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  npu_emulator::bind_collectives();
  pthread_atfork([] { counters.mutex.lock(); }, [] { counters.mutex.unlock(); }, [] { counters.mutex.unlock(); });
}

// Gives `library::name` a PrivateUse1 kernel that runs the kernel registered under PrivateUse2 on CPU aliases.
void npu_emulator_bind(const char* library, const char* name) {
  static std::vector<std::unique_ptr<torch::Library>> libraries;
  libraries.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, library, c10::DispatchKey::PrivateUse1,
                                                       __FILE__, __LINE__));
  libraries.back()->impl(name, torch::CppFunction::makeFromBoxedFunction<&npu_emulator::run_emulation>());
}

int npu_emulator_current_device() { return npu_emulator::current_device; }
void npu_emulator_set_device(int index) { npu_emulator::current_device = static_cast<c10::DeviceIndex>(index); }
int64_t npu_emulator_allocated(int index) { return memory_use[index].allocated; }
int64_t npu_emulator_peak(int index) { return memory_use[index].peak; }
void npu_emulator_reset_peak(int index) { memory_use[index].peak = memory_use[index].allocated.load(); }
void npu_emulator_count_launch(const char* name) {
  static std::map<std::string, int> ids;
  static std::mutex mutex;
  const void* id = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    id = &ids[name];
  }
  counters.launch(id, [name] { return std::string(name); });
}
void npu_emulator_count_kv_bytes(int64_t token, int64_t page) {
  counters.kv_token_bytes += token;
  counters.kv_page_bytes += page;
}
void npu_emulator_count_synchronize() { ++counters.synchronizes; }
void npu_emulator_reset_counters() { counters.reset(); }

// The counters as JSON. The text lives until the next call on the same thread.
const char* npu_emulator_counters() {
  thread_local std::string text;
  text = npu_emulator::counters_json();
  return text.c_str();
}

}  // extern "C"
