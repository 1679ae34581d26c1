#include "tape.h"

#include "alias.h"
#include "capture.h"
#include "counters.h"
#include "direct.h"
#include "fallback.h"
#include "replay.h"
#include "streams.h"

namespace npu_emulator {

Tape::Tape(std::shared_ptr<GraphPool> given_pool, uint64_t given_number)
    : number(given_number), pool(std::move(given_pool)) {}

c10::Storage Tape::host_storage(const std::shared_ptr<Block>& block, size_t bytes) {
  auto found = host_storages_.find(block.get());
  if (found == host_storages_.end()) {
    found = host_storages_.emplace(block.get(), weak_storage(block, bytes, c10::Device(c10::kCPU))).first;
  }
  return found->second;
}

void run(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kOperator: {
      const auto& schema = node.op->schema();
      counters.launch(&schema, [&node] { return node.name; });
      torch::jit::Stack stack(node.arguments);
      if (node.key != kEmulation || !run_directly(*node.op, stack)) {
        const AwaitPlan guard;
        node.op->redispatchBoxed(c10::DispatchKeySet(node.key), &stack);
      }
      for (const auto& fresh : node.fresh) {
        const auto& value = stack[fresh.result];
        fresh.memory.copy_(value.isTensor() ? value.toTensor() : value.toTensorVector()[fresh.element]);
      }
      break;
    }
    case Node::Kind::kWork:
      node.work();
      break;
    case Node::Kind::kPoison:
      node.block->overwrite();
      break;
    case Node::Kind::kReset:
      node.event->recorded = false;
      break;
    case Node::Kind::kRecord:
      node.event->recorded = true;
      resume_waiting(*node.event);
      break;
    case Node::Kind::kWait:
      break;  // the replay itself waits
  }
}

void ExternalEvent::record(int64_t stream) {
  if (capture_external_event(Node::Kind::kRecord, "ExternalEvent.record", stream, this)) return;
  require_running(stream, "ExternalEvent.record");
  recorded = true;
  resume_waiting(*this);
}

void ExternalEvent::wait(int64_t stream) {
  if (capture_external_event(Node::Kind::kWait, "ExternalEvent.wait", stream, this)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(recorded,
                              "ExternalEvent.wait outside a capture, for an event that is not recorded: the stream would "
                              "stand still, which the emulated NPU does not model");
}

void ExternalEvent::reset(int64_t stream) {
  if (capture_external_event(Node::Kind::kReset, "ExternalEvent.reset", stream, this)) return;
  recorded = false;
}

}  // namespace npu_emulator
