// Operators that run without Python where their arguments are plain ones: those that every layer of a decode step calls.
//
// The emulation in Python stays the one that checks arguments, knows all forms of an operator and words its errors. A
// direct form takes what it recognises, and leaves everything else to it.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <initializer_list>

namespace npu_emulator {

// Either puts the results in the place of the arguments, which begin at `first`, and returns true; or changes nothing
// and returns false. Tensors are all npu tensors, or, in the replay of a graph, all CPU tensors on the same memory.
using DirectForm = bool (*)(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t first);

// To be called while the library is loaded. `name` is that of the operator, with library and overload. A form that is not
// on is used once it is switched on. Returns true.
bool add_direct_form(const char* name, DirectForm form, bool on = true);

// Runs the operator's direct form, if it has one that takes these arguments.
bool run_directly(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// While it lives, the emulation in Python may say what the call comes down to that run_directly() left to it: a plan that
// comes later, after the call has failed, say, belongs to no call.
struct AwaitPlan {
  AwaitPlan() = default;
  ~AwaitPlan();
  AwaitPlan(const AwaitPlan&) = delete;
  AwaitPlan& operator=(const AwaitPlan&) = delete;
};

// Whether all tensors are on one kind of device.
inline bool on_one_device(std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors) {
  const auto device = tensors.begin()->get().device().type();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.device().type() != device) return false;
  }
  return true;
}

// Replaces the arguments by results.
template <typename... Results>
void finish_directly(torch::jit::Stack& stack, size_t first, Results&&... results) {
  stack.resize(first);
  (stack.emplace_back(std::forward<Results>(results)), ...);
}

}  // namespace npu_emulator
