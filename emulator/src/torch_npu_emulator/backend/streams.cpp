#include "streams.h"

#include <map>
#include <mutex>

#include "capture.h"
#include "device.h"
#include "replay.h"

namespace npu_emulator {
namespace {

std::recursive_mutex mutex;
std::map<StreamId, Pending> streams;
Pending all_unconfirmed;

thread_local StreamId given_stream = 0;
thread_local int64_t given_device = -1;

const Replay* first_waiting(const Pending& pending) {
  for (const auto& replay : pending) {
    if (replay->waiting()) return replay.get();
  }
  return nullptr;
}

void require_end(const Pending& pending, const std::string& what) {
  refuse_in_capture(what);
  if (const Replay* replay = first_waiting(pending)) {
    TORCH_CHECK(false, what, " would never end: ", replay->where(),
                ". Update its tasks and record the event before the host waits");
  }
}

// The host knows now that these are finished.
void confirm(const Pending& finished) {
  if (finished.empty()) return;
  const Pending kept(finished);  // the argument may be one of those that are changed
  for (const auto& replay : kept) all_unconfirmed.erase(replay);
  for (auto& [stream, pending] : streams) {
    for (const auto& replay : kept) pending.erase(replay);
  }
  watched_replays = all_unconfirmed.size();
}

}  // namespace

StreamId current_stream() { return given_device == current_device ? given_stream : -(int64_t{current_device} + 1); }

void set_current_stream(StreamId stream, int64_t device) {
  given_stream = stream;
  given_device = device;
}

void require_running(StreamId stream, const std::string& what) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  if (all_unconfirmed.empty()) return;
  const auto found = streams.find(stream);
  if (found == streams.end()) return;
  if (const Replay* replay = first_waiting(found->second)) {
    TORCH_CHECK(false, what, " is queued behind a replay that waits (", replay->where(),
                "): the emulated NPU cannot run it later. Update the tasks and record the event first");
  }
}

void wait_for_stream(StreamId stream, const std::string& what) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  const auto& pending = streams[stream];
  require_end(pending, what);
  confirm(pending);
}

void wait_for_device(const std::string& what) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  require_end(all_unconfirmed, what);
  confirm(all_unconfirmed);
}

void launched(StreamId stream, const ReplayPtr& replay) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  streams[stream].insert(replay);
  all_unconfirmed.insert(replay);
  watched_replays = all_unconfirmed.size();
}

bool comes_after(StreamId stream, const ReplayPtr& replay) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return all_unconfirmed.count(replay) == 0 || streams[stream].count(replay) != 0;
}

Pending unconfirmed() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return all_unconfirmed;
}

void StreamEvent::record(StreamId stream) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  stream_ = stream;
  captured_ = capture_event_recorded(stream, &capture_, &position_);
  after_ = captured_ ? Pending() : streams[stream];
}

void StreamEvent::wait(StreamId stream) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  if (captured_) {
    capture_stream_waits(stream, stream_, capture_, position_);
    return;
  }
  streams[stream].insert(after_.begin(), after_.end());
}

bool StreamEvent::query() const {
  refuse_in_capture("torch.npu.Event.query");
  return first_waiting(after_) == nullptr;
}

void StreamEvent::synchronize() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  require_end(after_, "torch.npu.Event.synchronize");
  confirm(after_);
}

}  // namespace npu_emulator
