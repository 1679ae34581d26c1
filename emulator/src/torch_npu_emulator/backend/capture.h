// The capture of a graph: from its begin to its end, work of this thread is written to a tape and not done.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tape.h"

namespace npu_emulator {

bool capturing();
// Raises while a graph is captured: `what` makes the host wait for the device, or read from it.
void refuse_in_capture(const std::string& what);

void begin_capture(int64_t pool, int64_t stream);
std::shared_ptr<Tape> end_capture();
void abort_capture() noexcept;

Tape& captured_tape();
// Adds a node, work on the current stream: to the open task group too, if it is an operator.
void capture_node(Node node);
// Memory for a tensor that is made in the capture.
c10::DataPtr capture_allocation(size_t bytes);

void begin_task_group(int64_t stream);
c10::intrusive_ptr<TaskGroup> end_task_group(int64_t stream);

// Ordinary events order the streams of a capture. The first returns whether the stream is captured, and its position.
bool capture_event_recorded(int64_t stream, uint64_t* capture, size_t* position);
void capture_stream_waits(int64_t stream, int64_t recorded_on, uint64_t capture, size_t position);

// Returns whether the call on an external event was captured.
bool capture_external_event(Node::Kind kind, const char* name, int64_t stream, ExternalEvent* event);

// The owner of a block is gone.
void memory_given_up(const std::shared_ptr<Block>& block);

}  // namespace npu_emulator
