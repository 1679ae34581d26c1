#include "task_update.h"

#include "captured_call.h"
#include "capture.h"
#include "counters.h"
#include "faults.h"
#include "operator_rules.h"
#include "replay.h"
#include "streams.h"

namespace npu_emulator {
namespace {

struct Update {
  c10::intrusive_ptr<TaskGroup> group;
  std::shared_ptr<Tape> tape;
  StreamId stream = 0;
  size_t done = 0;
};

thread_local std::unique_ptr<Update> update;

// Arguments whose shape depends on the batch of a step and not on the size of the graph.
bool may_change_shape(const std::string& argument) {
  return argument == "block_table" || argument == "context_lens" || argument == "workspace";
}

void match_tensor(const std::string& where, bool shape_may_change, const at::Tensor& captured, const at::Tensor& given) {
  TORCH_CHECK(captured.defined() == given.defined(), where, captured.defined() ? " was given when the graph was captured"
                                                                               : " was not given when the graph was captured");
  if (!captured.defined()) return;
  TORCH_CHECK(captured.scalar_type() == given.scalar_type(), where, " of ", given.scalar_type(), ", captured with ",
              captured.scalar_type());
  TORCH_CHECK(captured.dim() == given.dim() && (shape_may_change || captured.sizes() == given.sizes()), where, " of shape ",
              given.sizes(), ", captured with ", captured.sizes());
}

void match(const std::string& where, bool shape_may_change, const c10::IValue& captured, const c10::IValue& given) {
  if (captured.isTensorList() && given.isTensorList()) {
    const auto a = captured.toTensorVector(), b = given.toTensorVector();
    TORCH_CHECK(a.size() == b.size(), where, " has ", b.size(), " tensors, captured with ", a.size());
    for (size_t i = 0; i < a.size(); ++i) match_tensor(where, shape_may_change, a[i], b[i]);
    return;
  }
  if (captured.isTensor() || given.isTensor()) {
    match_tensor(where, shape_may_change, captured.isTensor() ? captured.toTensor() : at::Tensor(),
                 given.isTensor() ? given.toTensor() : at::Tensor());
  } else if (captured.isString() && given.isString()) {
    TORCH_CHECK(captured.toStringRef() == given.toStringRef(), where, " is '", given.toStringRef(), "', captured with '",
                captured.toStringRef(), "'");
  } else {
    TORCH_CHECK(captured.isNone() == given.isNone(), where, given.isNone() ? " is missing" : " is new",
                " against what was captured");
  }
}

}  // namespace

bool updating_tasks() { return update != nullptr; }

void refuse_in_update(const char* what) {
  TORCH_CHECK(!updating_tasks(), what, " between graph_task_update_begin and graph_task_update_end: only the operators of the "
              "task group may be called there");
}

void begin_task_update(StreamId stream, const c10::intrusive_ptr<TaskGroup>& group) {
  TORCH_CHECK(!capturing(), "graph_task_update_begin while a graph is captured");
  TORCH_CHECK(!updating_tasks(), "graph_task_update_begin inside a task update");
  auto tape = group->tape.lock();
  TORCH_CHECK(tape, "graph_task_update_begin: the graph of this handle is gone (reset or deleted)");
  require_running(stream, "a task update");
  for (const auto& replay : unconfirmed()) {
    if (replay->tape() != tape) continue;
    for (const size_t node : group->nodes) {
      TORCH_CHECK(!replay->has_run(node) || comes_after(stream, replay), "graph_task_update_begin: graph ", tape->number,
                  " was replayed, and neither has the host waited for that replay since, nor does the update stream come "
                  "after it: its tasks may be changed while they run. Synchronise before the update");
    }
  }
  update = std::make_unique<Update>(Update{group, std::move(tape), stream});
}

void end_task_update(StreamId stream) {
  TORCH_CHECK(updating_tasks(), "graph_task_update_end without graph_task_update_begin");
  const auto done = std::move(update);
  TORCH_CHECK(done->stream == stream, "graph_task_update_end on stream ", stream, ", begun on stream ", done->stream);
  TORCH_CHECK(done->done == done->group->nodes.size(), "graph_task_update_end after ", done->done, " of the task group's ",
              done->group->nodes.size(), " tasks");
}

void update_task(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DispatchKey key) {
  Update& now = *update;
  const auto name = name_of(op);
  TORCH_CHECK(current_stream() == now.stream, name, " in a task update is called on stream ", current_stream(),
              ", the update was begun on stream ", now.stream);
  TORCH_CHECK(now.done < now.group->nodes.size(), name, " in a task update: the group has only ", now.group->nodes.size(),
              " tasks");
  Node& captured = now.tape->nodes[now.group->nodes[now.done]];
  TORCH_CHECK(captured.op->operator_name() == op.operator_name(), "task update with ", name, ", captured was ",
              captured.name);
  CapturedCall call(op, stack, key, *now.tape);
  call.finish(/*results_are_given=*/true);
  auto given = call.node();
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    match(c10::str("task update of ", name, ": argument '", arguments[i].name(), "'"), may_change_shape(arguments[i].name()),
          captured.arguments[i], given.arguments[i]);
  }
  if (!fault(Fault::kIgnoreTaskUpdate)) captured.arguments = std::move(given.arguments);
  ++counters.task_updates;
  ++now.done;
}

}  // namespace npu_emulator
