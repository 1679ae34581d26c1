// What a captured graph does, node by node, and its replay.
//
// A node of an operator holds CPU tensors that refer to the memory of the captured call's npu tensors without owning it:
// a replay calls the operators of the CPU on these addresses, and copies new results to the addresses that the captured
// call returned. Nothing of the model's Python runs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/custom_class.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph_pool.h"

namespace npu_emulator {

class ExternalEvent;

// A tensor that an operator makes anew: where it stands among the results, and the memory that it is copied to.
struct FreshResult {
  size_t result;
  size_t element;  // of a list, else 0
  at::Tensor memory;
};

struct Node {
  enum class Kind { kOperator, kWork, kPoison, kWait, kReset, kRecord };
  Kind kind;
  std::string name;

  std::optional<c10::OperatorHandle> op;
  c10::DispatchKey key = c10::DispatchKey::CPU;
  std::vector<c10::IValue> arguments;
  std::vector<FreshResult> fresh;

  std::function<void()> work;                        // a copy
  std::shared_ptr<Block> block;                      // what is poisoned
  c10::intrusive_ptr<ExternalEvent> event;
};

class Tape {
 public:
  Tape(std::shared_ptr<GraphPool> pool, uint64_t number);

  const uint64_t number;  // of the capture, in this process
  const std::shared_ptr<GraphPool> pool;
  int64_t begun = 0, ended = 0;  // on the pool's clock
  std::vector<Node> nodes;
  bool watched = false;  // it waits at events, or has tasks that can be updated

  // The CPU storage that refers to a block: one per block, since operators look at whether arguments share storage.
  c10::Storage host_storage(const std::shared_ptr<Block>& block, size_t bytes);

 private:
  std::unordered_map<const Block*, c10::Storage> host_storages_;
};

void run(const Node& node);

// The nodes of one task group, in order.
class TaskGroup final : public torch::CustomClassHolder {
 public:
  std::weak_ptr<Tape> tape;
  std::vector<size_t> nodes;
};

// torch.npu.ExternalEvent. Captured graphs wait for it, reset it and record it; so does the host.
class ExternalEvent final : public torch::CustomClassHolder {
 public:
  void record(int64_t stream);
  void wait(int64_t stream);
  void reset(int64_t stream);

  bool recorded = false;
  std::vector<std::shared_ptr<class Replay>> waiting;
};

}  // namespace npu_emulator
