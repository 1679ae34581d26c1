// What is known of operators by their names: what they read on the host, and what they wait for.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

namespace npu_emulator {

inline std::string name_of(const c10::OperatorHandle& op) { return c10::toString(op.operator_name()); }

inline bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

inline bool ends_with(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

inline bool is_index_put(const std::string& name) {
  return starts_with(name, "aten::index_put") || starts_with(name, "aten::_index_put_impl");
}

// Operators whose result size, or whose work, depends on device data: hardware waits for the stream to learn it.
inline bool waits_for_data(const std::string& name, const torch::jit::Stack& stack, size_t first) {
  if (starts_with(name, "aten::nonzero") || starts_with(name, "aten::masked_select") ||
      starts_with(name, "aten::_unique") || starts_with(name, "aten::unique_") || name == "aten::equal" ||
      name == "aten::bincount" || name == "aten::repeat_interleave.Tensor") {
    return true;
  }
  if (is_index_put(name) && stack[first + 1].isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& index : stack[first + 1].toOptionalTensorList().vec()) {
      if (index && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte)) return true;
    }
  }
  return false;
}

// Host tensors that an operator may take beside device tensors, as torch's other accelerators allow: the indices of
// index and index_put, which are copied to the device. Zero-dimensional host tensors count as numbers everywhere.
inline bool takes_host_indices(const std::string& name, size_t argument) {
  return (is_index_put(name) || starts_with(name, "aten::index.")) && argument == 1;
}

// The ATB library reads the lengths of paged attention on the host.
inline bool reads_on_host(const std::string& name, size_t argument) {
  return starts_with(name, "npu::_npu_paged_attention") && argument == 7;
}

// Functions of the operator library that answer on the host and launch nothing.
inline bool answers_on_host(const std::string& name) {
  return (starts_with(name, "npu::_") && ends_with(name, "workspace")) || name == "npu::get_npu_format";
}

inline bool is_nested_list(const c10::IValue& value) {
  return value.isList() && !value.toListRef().empty() && value.toListRef()[0].isTensorList();
}

}  // namespace npu_emulator
