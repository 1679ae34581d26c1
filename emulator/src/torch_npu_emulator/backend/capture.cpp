#include "capture.h"

#include <map>

#include "counters.h"
#include "device.h"
#include "faults.h"
#include "streams.h"

namespace npu_emulator {
namespace {

struct CapturedStream {
  size_t last_work = 0;
  bool joined = true;  // work on it comes before the end of the capture
};

struct Capture {
  std::shared_ptr<Tape> tape;
  StreamId origin = 0;
  std::map<StreamId, CapturedStream> streams;
  c10::intrusive_ptr<TaskGroup> group;
  std::vector<std::shared_ptr<Block>> given_up;  // and not yet followed by an allocation, which may get the memory
};

thread_local std::unique_ptr<Capture> capture;

CapturedStream& stream_of_capture(StreamId stream, const std::string& what) {
  const auto found = capture->streams.find(stream);
  TORCH_CHECK(found != capture->streams.end(), what, " is called on stream ", stream,
              ", which does not belong to the capture on stream ", capture->origin,
              ": let it wait for that stream first");
  return found->second;
}

}  // namespace

bool capturing() { return capture != nullptr; }

void refuse_in_capture(const std::string& what) {
  TORCH_CHECK(!capturing(), what, " while a graph is captured: the host cannot wait for the device or read from it there");
}

void begin_capture(int64_t pool, StreamId stream) {
  static std::atomic<uint64_t> number{0};
  TORCH_CHECK(!capturing(), "a capture is begun while another one is under way");
  require_running(stream, "the capture of a graph");
  auto begun = std::make_unique<Capture>();
  begun->tape = std::make_shared<Tape>(GraphPool::of(pool), ++number);
  begun->tape->begun = begun->tape->pool->tick();
  begun->origin = stream;
  begun->streams[stream];
  capture = std::move(begun);
  allocate_in_capture = &capture_allocation;
}

std::shared_ptr<Tape> end_capture() {
  TORCH_CHECK(capturing(), "the end of a capture that was not begun");
  const auto done = std::move(capture);
  allocate_in_capture = nullptr;
  TORCH_CHECK(!done->group, "the capture ends inside a task group");
  for (const auto& [stream, state] : done->streams) {
    TORCH_CHECK(state.joined, "the capture ends with work on stream ", stream,
                " that its own stream does not wait for (an unjoined stream)");
  }
  done->tape->ended = done->tape->pool->tick();
  ++counters.graph_captures;
  return done->tape;
}

void abort_capture() noexcept {
  capture.reset();
  allocate_in_capture = nullptr;
}

Tape& captured_tape() { return *capture->tape; }

void capture_node(Node node) {
  auto& nodes = capture->tape->nodes;
  const StreamId stream = current_stream();
  auto& state = stream_of_capture(stream, node.name);
  state.last_work = nodes.size() + 1;
  state.joined = stream == capture->origin;
  if (capture->group && node.kind == Node::Kind::kOperator) capture->group->nodes.push_back(nodes.size());
  nodes.push_back(std::move(node));
}

c10::DataPtr capture_allocation(size_t bytes) {
  auto& tape = *capture->tape;
  for (auto& block : capture->given_up) {
    if (block->tape == tape.number) block->temporary = true;
    Node node{Node::Kind::kPoison, "memory reused"};
    node.block = std::move(block);
    tape.nodes.push_back(std::move(node));
  }
  capture->given_up.clear();
  auto block = std::make_shared<Block>();
  block->bytes = bytes;
  block->tape = tape.number;
  block->pool = tape.pool;
  block->region = tape.pool->reuse(bytes);
  if (!block->region) {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    block->region = std::make_shared<Region>();
    block->region->memory = npu_allocator.allocate_uncaptured(rounded);
    block->region->bytes = rounded;
    if (!fault(Fault::kNoPoison)) poison(block->region->memory.get(), rounded);
  }
  block->data = block->region->memory.get();
  tape.pool->add(block);
  return owned(std::move(block), c10::Device(kNpu, current_device));
}

void begin_task_group(StreamId stream) {
  TORCH_CHECK(capturing(), "graph_task_group_begin outside a capture");
  stream_of_capture(stream, "graph_task_group_begin");
  TORCH_CHECK(!capture->group, "graph_task_group_begin inside a task group");
  capture->group = c10::make_intrusive<TaskGroup>();
  capture->group->tape = capture->tape;
}

c10::intrusive_ptr<TaskGroup> end_task_group(StreamId stream) {
  TORCH_CHECK(capturing() && capture->group, "graph_task_group_end without graph_task_group_begin");
  stream_of_capture(stream, "graph_task_group_end");
  capture->tape->watched = true;
  return std::move(capture->group);
}

bool capture_event_recorded(StreamId stream, uint64_t* number, size_t* position) {
  if (!capturing()) return false;
  const auto found = capture->streams.find(stream);
  if (found == capture->streams.end()) return false;
  *number = capture->tape->number;
  *position = found->second.last_work;
  return true;
}

void capture_stream_waits(StreamId stream, StreamId recorded_on, uint64_t number, size_t position) {
  TORCH_CHECK(capturing() && capture->tape->number == number,
              "a stream waits for an event that was recorded in a capture, outside that capture");
  auto& recorded = capture->streams[recorded_on];
  if (stream == capture->origin) {
    if (position >= recorded.last_work) recorded.joined = true;
    return;
  }
  // It joins the capture, and owes a join of its own.
  capture->streams[stream].joined = false;
  if (recorded_on != capture->origin && position >= recorded.last_work) recorded.joined = true;
}

bool capture_external_event(Node::Kind kind, const char* name, StreamId stream, ExternalEvent* event) {
  if (!capturing() || capture->streams.count(stream) == 0) return false;
  Node node{kind, name};
  node.event = c10::intrusive_ptr<ExternalEvent>::unsafe_reclaim_from_nonowning(event);
  if (kind == Node::Kind::kWait) capture->tape->watched = true;
  capture->tape->nodes.push_back(std::move(node));
  return true;
}

void memory_given_up(const std::shared_ptr<Block>& block) {
  const bool referred_to = block.use_count() > 1;
  const auto pool = block->pool.lock();
  if (!pool) {
    // Memory of no graph: another owner may get it at once.
    if (referred_to) block->overwrite();
    return;
  }
  if (referred_to && capturing() && capture->tape->pool == pool) capture->given_up.push_back(block);
  pool->take_back(block);
}

}  // namespace npu_emulator
