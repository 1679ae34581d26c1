#include "fallback.h"

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "alias.h"
#include "counters.h"
#include "captured_call.h"
#include "capture.h"
#include "device.h"
#include "direct.h"
#include "operator_rules.h"
#include "streams.h"
#include "task_update.h"

namespace npu_emulator {
namespace {

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(*stack) {}

  void run(c10::DispatchKey key) {
    if (updating_tasks()) return update_task(op_, &stack_, key);
    if (capturing()) return capture_operator(op_, &stack_, key);
    require_running(current_stream(), [this] { return name_of(op_); });
    const auto& schema = op_.schema();
    const size_t first = stack_.size() - schema.arguments().size();
    counters.launch(&schema, [this] { return name_of(op_); });
    if (key == kEmulation && run_directly(op_, stack_)) return;
    const AwaitPlan guard;
    for (size_t i = first; i < stack_.size(); ++i) to_host(stack_[i], i - first);
    if (!aliases_.empty()) {
      if (host_tensors_) check_devices();
      if (op_.operator_name().name.rfind("aten::", 0) == 0 && waits_for_data(name_of(op_), stack_, first)) {
        ++counters.implicit_synchronizes;
        wait_for_stream(current_stream(), name_of(op_));
      }
    }
    op_.redispatchBoxed(c10::DispatchKeySet(key), &stack_);
    for (size_t i = stack_.size() - schema.returns().size(); i < stack_.size(); ++i) to_device(stack_[i]);
    adopt_resized();
  }

 private:
  void to_host(c10::IValue& value, size_t argument) {
    if (value.isTensor()) {
      value = to_host(value.toTensor(), argument);
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) tensor = to_host(tensor, argument);
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec()) {
        list.push_back(tensor ? std::make_optional(to_host(*tensor, argument)) : std::nullopt);
      }
      value = list;
    } else if (is_nested_list(value)) {
      c10::List<std::vector<at::Tensor>> list;
      for (const c10::IValue& inner : value.toListRef()) {
        auto tensors = inner.toTensorVector();
        for (auto& tensor : tensors) tensor = to_host(tensor, argument);
        list.push_back(tensors);
      }
      value = list;
    } else if (value.isDevice() && value.toDevice().type() == kNpu) {
      value = c10::Device(c10::kCPU);
    }
  }

  at::Tensor to_host(const at::Tensor& tensor, size_t argument) {
    if (!is_npu(tensor)) {
      if (tensor.defined() && tensor.dim() > 0) {
        host_tensors_ = true;
        host_arguments_.emplace_back(argument, static_cast<int64_t>(tensor.nbytes()));
      }
      return tensor;
    }
    for (const auto& [npu, cpu] : aliases_) {
      if (npu.is_same(tensor)) return cpu;
    }
    // Arguments that share a storage on the device share one on the host too: operators ask for that.
    const void* storage = tensor.storage().unsafeGetStorageImpl();
    const auto known = host_storages_.find(storage);
    at::Tensor alias = known == host_storages_.end()
                           ? to_cpu_alias(tensor)
                           : tensor_on(c10::Storage(known->second), tensor, c10::DispatchKey::CPU);
    if (known == host_storages_.end()) host_storages_.emplace(storage, alias.storage());
    npu_storages_.emplace(alias.storage().unsafeGetStorageImpl(), tensor.storage());
    aliases_.emplace_back(tensor, alias);
    return alias;
  }

  void check_devices() const {
    const std::string name = name_of(op_);
    for (const auto& [argument, bytes] : host_arguments_) {
      if (reads_on_host(name, argument)) continue;
      TORCH_CHECK(takes_host_indices(name, argument),
                  "Expected all tensors to be on the same device, but found at least two devices, npu:0 and cpu! ",
                  name, " got a host tensor as argument '", op_.schema().arguments()[argument].name(), "'");
      if (!is_index_put(name)) continue;  // torch itself has copied the indices of index to the device, and counted
      ++counters.host_to_device;
      counters.host_to_device_bytes += bytes;
    }
  }

  void to_device(c10::IValue& value) {
    if (value.isTensor()) {
      value = to_device(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) tensor = to_device(tensor);
      value = list;
    } else if (is_nested_list(value)) {
      c10::List<std::vector<at::Tensor>> list;
      for (const c10::IValue& inner : value.toListRef()) {
        auto tensors = inner.toTensorVector();
        for (auto& tensor : tensors) tensor = to_device(tensor);
        list.push_back(tensors);
      }
      value = list;
    }
  }

  at::Tensor to_device(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_cpu()) return tensor;
    for (const auto& [npu, cpu] : aliases_) {
      if (cpu.is_same(tensor)) return npu;
    }
    const auto view_of = npu_storages_.find(tensor.storage().unsafeGetStorageImpl());
    if (view_of != npu_storages_.end()) {
      return tensor_on(c10::Storage(view_of->second), tensor, c10::DispatchKey::PrivateUse1);
    }
    // Where the arguments are, as on hardware; without any, on the current device.
    at::Tensor result = to_npu_alias(tensor, aliases_.empty() ? current_device : aliases_.front().first.device().index());
    // Further results in the same new memory share its storage, which counts once.
    npu_storages_.emplace(tensor.storage().unsafeGetStorageImpl(), result.storage());
    return result;
  }

  // An out= argument that the operator resized has new memory on the host: the npu tensor takes it over.
  void adopt_resized() {
    for (auto& [npu, cpu] : aliases_) {
      if (cpu.storage().data() != npu.storage().data()) {
        auto* storage = npu.storage().unsafeGetStorageImpl();
        storage->set_data_ptr_noswap(adopted_data(cpu.storage(), npu.device()));
        storage->set_nbytes(cpu.storage().nbytes());
      }
      if (cpu.sizes() != npu.sizes() || cpu.strides() != npu.strides()) {
        npu.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
      }
    }
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::vector<std::pair<at::Tensor, at::Tensor>> aliases_;  // npu argument, its CPU alias
  std::unordered_map<const void*, c10::Storage> host_storages_, npu_storages_;
  std::vector<std::pair<size_t, int64_t>> host_arguments_;  // argument number, bytes
  bool host_tensors_ = false;
};

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.operator_name().name;
  TORCH_CHECK_NOT_IMPLEMENTED(!starts_with(name, "npu::") && !starts_with(name, "_C_ascend::"), "operator ",
                              name_of(op), " is not modelled by the emulated NPU");
  Call(op, stack).run(c10::DispatchKey::CPU);
}

void run_emulation(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, stack).run(kEmulation); }

}  // namespace npu_emulator
