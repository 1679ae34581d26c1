// One boxed kernel for every operator that the device has no kernel of its own for.
//
// Each npu argument becomes a CPU tensor that shares its memory, the operator runs on the CPU, and the results are
// mapped back: the argument itself where an operator returns its argument, a view on the argument's storage where it
// returns a view, a new npu tensor otherwise.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace npu_emulator {

// Operators of libraries that exist on NPUs only (npu::, _C_ascend::) are implemented under this otherwise unused key,
// so that a call with CPU tensors is refused by torch as it is on hardware, and not quietly served.
constexpr auto kEmulation = c10::DispatchKey::PrivateUse2;

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void run_emulation(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace npu_emulator
