#include "replay.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <iostream>

#include "counters.h"
#include "faults.h"

namespace npu_emulator {
namespace {

bool holds_poison(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return false;
  const auto packed = tensor.contiguous();
  const auto* words = static_cast<const uint32_t*>(packed.const_data_ptr());
  return std::find(words, words + packed.nbytes() / sizeof(uint32_t), kPoison) != words + packed.nbytes() / sizeof(uint32_t);
}

// Names the operands of an operator that hold poison when it is launched. Tensors that are only written may: the
// first operator that is named without being given an output is the one that read something stale.
void report_poison(const Node& node, uint64_t tape, size_t position) {
  if (node.kind != Node::Kind::kOperator) return;
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    const auto& value = node.arguments[i];
    bool found = value.isTensor() && holds_poison(value.toTensor());
    if (value.isTensorList()) {
      for (const auto& tensor : value.toTensorVector()) found |= holds_poison(tensor);
    }
    if (found) {
      std::cerr << "torch-npu-emulator: graph " << tape << ", node " << position << ", " << node.name << ": argument '"
                << node.op->schema().arguments()[i].name() << "' holds poison\n";
    }
  }
}

}  // namespace

Replay::Replay(std::shared_ptr<Tape> tape, StreamId stream) : tape_(std::move(tape)), stream_(stream) {}

std::string Replay::where() const {
  size_t events = 0, passed = 0;
  for (size_t i = 0; i < tape_->nodes.size(); ++i) {
    if (tape_->nodes[i].kind != Node::Kind::kWait) continue;
    ++events;
    passed += i < position_;
  }
  return c10::str("graph ", tape_->number, " waits at external event ", passed + 1, " of ", events);
}

void Replay::resume() {
  // Tensors of the tape belong to no autograd graph.
  const c10::InferenceMode guard(true);
  struct Running {
    Running() { ++replaying; }
    ~Running() { --replaying; }
  } const running;
  state_ = State::kRunning;
  try {
    for (; position_ < tape_->nodes.size(); ++position_) {
      const Node& node = tape_->nodes[position_];
      if (node.kind == Node::Kind::kWait && !node.event->recorded && !fault(Fault::kStaleEvent)) {
        state_ = State::kWaiting;
        node.event->waiting.push_back(shared_from_this());
        return;
      }
      if (trace_poison) report_poison(node, tape_->number, position_);
      run(node);
    }
  } catch (...) {
    state_ = State::kFinished;
    throw;
  }
  state_ = State::kFinished;
  tape_->pool->mark_written(tape_->number);
}

void replay(const std::shared_ptr<Tape>& tape, StreamId stream) {
  require_running(stream, c10::str("the replay of graph ", tape->number));
  for (const auto& other : unconfirmed()) {
    TORCH_CHECK(!other->waiting() || other->tape() != tape, "graph ", tape->number,
                " is replayed while its last replay still waits (", other->where(), ")");
  }
  ++counters.graph_replays;
  if (fault(Fault::kSkipReplay)) return;
  tape->pool->overwrite_before_replay(tape->number, tape->begun, tape->ended);
  const auto run = std::make_shared<Replay>(tape, stream);
  // What neither waits nor has tasks that could be changed needs no watching.
  if (tape->watched) launched(stream, run);
  run->resume();
}

void resume_waiting(ExternalEvent& event) {
  std::vector<ReplayPtr> waiting;
  waiting.swap(event.waiting);
  for (const auto& replay : waiting) replay->resume();
}

}  // namespace npu_emulator
