#include "captured_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include "alias.h"
#include "capture.h"
#include "operator_rules.h"

namespace npu_emulator {
namespace {

// Under this key an operator has what is checked of it when it is captured, if that is more than its shape function.
constexpr auto kCaptureCheck = c10::DispatchKey::PrivateUse3;

bool is_collective(const std::string& name) { return starts_with(name, "c10d::"); }

}  // namespace

CapturedCall::CapturedCall(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DispatchKey key, Tape& tape)
    : op_(op), stack_(*stack), key_(key), tape_(tape), name_(name_of(op)) {
  const size_t count = op.schema().arguments().size();
  const size_t first = stack_.size() - count;
  if (starts_with(name_, "aten::") && waits_for_data(name_, stack_, first)) refuse_in_capture(name_);
  for (size_t i = 0; i < count; ++i) add(stack_[first + i], i);
}

void CapturedCall::add(const c10::IValue& value, size_t argument) {
  if (value.isTensor()) {
    const auto one = operand(value.toTensor(), argument);
    shapes_.emplace_back(one.meta);
    arguments_.emplace_back(one.host);
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> metas, hosts;
    for (const auto& tensor : value.toTensorVector()) {
      auto one = operand(tensor, argument);
      metas.push_back(std::move(one.meta));
      hosts.push_back(std::move(one.host));
    }
    shapes_.emplace_back(std::move(metas));
    arguments_.emplace_back(std::move(hosts));
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> metas, hosts;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec()) {
      const auto one = tensor ? operand(*tensor, argument) : Operand();
      metas.push_back(tensor ? std::make_optional(one.meta) : std::nullopt);
      hosts.push_back(tensor ? std::make_optional(one.host) : std::nullopt);
    }
    shapes_.emplace_back(std::move(metas));
    arguments_.emplace_back(std::move(hosts));
  } else if (is_nested_list(value)) {
    c10::List<std::vector<at::Tensor>> metas, hosts;
    for (const c10::IValue& inner : value.toListRef()) {
      std::vector<at::Tensor> inner_metas, inner_hosts;
      for (const auto& tensor : inner.toTensorVector()) {
        auto one = operand(tensor, argument);
        inner_metas.push_back(std::move(one.meta));
        inner_hosts.push_back(std::move(one.host));
      }
      metas.push_back(inner_metas);
      hosts.push_back(inner_hosts);
    }
    shapes_.emplace_back(std::move(metas));
    arguments_.emplace_back(std::move(hosts));
  } else if (value.isDevice() && value.toDevice().type() == kNpu) {
    shapes_.emplace_back(c10::Device(c10::kMeta));
    arguments_.emplace_back(c10::Device(c10::kCPU));
  } else {
    shapes_.push_back(value);
    arguments_.push_back(value);
  }
}

CapturedCall::Operand CapturedCall::operand(const at::Tensor& tensor, size_t argument) {
  if (!tensor.defined()) return {tensor, tensor, tensor};
  if (!is_npu(tensor)) return {tensor, tensor, captured_host(tensor, argument)};
  for (const auto& known : operands_) {
    if (known.npu.is_same(tensor)) return known;
  }
  const auto& storage = tensor.storage();
  const c10::Storage* meta_storage = nullptr;
  for (const auto& [npu, meta] : storages_) {
    if (npu.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) meta_storage = &meta;
  }
  if (meta_storage == nullptr) {
    c10::Storage meta(c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
                      c10::GetAllocator(c10::kMeta), /*resizable=*/true);
    meta_storage = &storages_.emplace_back(storage, std::move(meta)).second;
  }
  const auto host = tape_.host_storage(block_of(storage), storage.nbytes());
  return operands_.emplace_back(Operand{tensor, tensor_on(c10::Storage(*meta_storage), tensor, c10::DispatchKey::Meta),
                                        tensor_on(c10::Storage(host), tensor, c10::DispatchKey::CPU)});
}

// Numbers, and lengths that the operator library reads on the host, are parameters of the launch: kept as they are now.
at::Tensor CapturedCall::captured_host(const at::Tensor& tensor, size_t argument) const {
  if (tensor.dim() == 0 || reads_on_host(name_, argument)) return tensor.clone();
  if (takes_host_indices(name_, argument)) refuse_in_capture(name_ + " with indices on the host");
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, npu:0 and cpu! ",
              name_, " got a host tensor as argument '", op_.schema().arguments()[argument].name(), "'");
}

void CapturedCall::finish(bool results_are_given) {
  // Collectives are run: all ranks capture the same ones, and their handles must be real.
  const bool run = is_collective(name_);
  const auto key = run                                           ? key_
                   : op_.hasKernelForDispatchKey(kCaptureCheck) ? kCaptureCheck
                                                                 : c10::DispatchKey::Meta;
  TORCH_CHECK_NOT_IMPLEMENTED(run || op_.hasComputedKernelForDispatchKey(key), name_,
                              " cannot be captured by the emulated NPU: it has no shape function (a Meta kernel)");
  torch::jit::Stack results = run ? torch::jit::Stack(arguments_) : std::move(shapes_);
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op_.redispatchBoxed(c10::DispatchKeySet(key), &results);
  }
  take_over_resized();
  for (size_t i = 0; i < results.size(); ++i) {
    auto& value = results[i];
    if (value.isTensor()) {
      value = result(value.toTensor(), i, 0, results_are_given);
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (size_t j = 0; j < list.size(); ++j) list[j] = result(list[j], i, j, results_are_given);
      value = list;
    } else if (is_nested_list(value)) {
      c10::List<std::vector<at::Tensor>> lists;
      for (const c10::IValue& inner : value.toListRef()) {
        auto list = inner.toTensorVector();
        for (auto& tensor : list) tensor = result(tensor, i, 0, /*results_are_given=*/true);
        lists.push_back(list);
      }
      value = lists;
    }
  }
  stack_.resize(stack_.size() - op_.schema().arguments().size());
  for (auto& value : results) stack_.push_back(std::move(value));
}

// An out= argument that the operator resizes.
void CapturedCall::take_over_resized() {
  for (auto& [npu, meta, host] : operands_) {
    if (meta.sizes() == npu.sizes() && meta.strides() == npu.strides()) continue;
    npu.resize_(meta.sizes());
    npu.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides());
    const auto& storage = npu.storage();
    auto* impl = host.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(tape_.host_storage(block_of(storage), storage.nbytes()));
    impl->set_sizes_and_strides(meta.sizes(), meta.strides(), npu.storage_offset());
  }
}

at::Tensor CapturedCall::result(const at::Tensor& tensor, size_t number, size_t element, bool results_are_given) {
  if (!tensor.defined()) return tensor;
  for (const auto& known : operands_) {
    if (known.meta.is_same(tensor) || known.host.is_same(tensor)) return known.npu;
  }
  for (const auto& [npu, meta] : storages_) {
    if (meta.unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
      return tensor_on(c10::Storage(npu), tensor, c10::DispatchKey::PrivateUse1);
    }
  }
  TORCH_CHECK(!results_are_given, name_,
              " makes a new tensor for its result: the captured graph would not read it. Use the form that writes to the "
              "tensors of the capture (.out)");
  TORCH_CHECK(tensor.device().is_meta(), name_, " cannot be captured: it returned a tensor on ", tensor.device());
  const auto made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(kNpu));
  const auto& storage = made.storage();
  fresh_.push_back({number, element,
                    tensor_on(tape_.host_storage(block_of(storage), storage.nbytes()), made, c10::DispatchKey::CPU)});
  return made;
}

Node CapturedCall::node() {
  Node node{Node::Kind::kOperator, name_};
  node.op = op_;
  node.key = key_;
  node.arguments = std::move(arguments_);
  node.fresh = std::move(fresh_);
  return node;
}

void capture_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DispatchKey key) {
  CapturedCall call(op, stack, key, captured_tape());
  call.finish(/*results_are_given=*/false);
  auto node = call.node();
  if (!answers_on_host(node.name)) capture_node(std::move(node));
}

}  // namespace npu_emulator
