// New arguments for the tasks of a captured graph.
#pragma once

#include "tape.h"

namespace npu_emulator {

bool updating_tasks();
void begin_task_update(int64_t stream, const c10::intrusive_ptr<TaskGroup>& group);
void end_task_update(int64_t stream);

// Takes the call's arguments as those of the group's next task. Raises where they do not fit what was captured.
void update_task(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DispatchKey key);
// Raises inside an update: `what` is no task.
void refuse_in_update(const char* what);

}  // namespace npu_emulator
