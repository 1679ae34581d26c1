// An operator call that is written down and not run: its arguments by address, its results by their shapes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

#include "tape.h"

namespace npu_emulator {

class CapturedCall {
 public:
  // `tape` is where the call's memory is referred to from. Raises where the call cannot be captured.
  CapturedCall(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DispatchKey key, Tape& tape);

  // Replaces the arguments on the stack by the results: shapes come from the operator's shape function, memory from the
  // current capture. Where `results_are_given`, a result that is not one of the arguments raises instead.
  void finish(bool results_are_given);

  Node node();

 private:
  struct Operand {
    at::Tensor npu, meta, host;
  };

  void add(const c10::IValue& value, size_t argument);
  Operand operand(const at::Tensor& tensor, size_t argument);
  at::Tensor captured_host(const at::Tensor& tensor, size_t argument) const;
  void take_over_resized();
  at::Tensor result(const at::Tensor& tensor, size_t number, size_t element, bool results_are_given);

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const c10::DispatchKey key_;
  Tape& tape_;
  const std::string name_;
  std::vector<Operand> operands_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // npu, meta
  torch::jit::Stack shapes_;
  std::vector<c10::IValue> arguments_;
  std::vector<FreshResult> fresh_;
};

void capture_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DispatchKey key);

}  // namespace npu_emulator
