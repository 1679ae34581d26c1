// What of the order of work on streams matters here, where every operator is finished when its call returns.
//
// Two things outlast a call. A replayed graph may wait at an event: whatever is queued behind it on its stream, or on a
// stream that waits for that stream, cannot run, and a host that waits for such a stream would hang. And a replay that
// was launched is, for the host, running until the host has waited for it: changing its tasks before is a race.
#pragma once

#include <torch/custom_class.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <type_traits>

namespace npu_emulator {

class Replay;
using ReplayPtr = std::shared_ptr<Replay>;
using StreamId = int64_t;

// Work a stream, or an event recorded on it, comes after, and of which the host does not know that it is finished.
using Pending = std::set<ReplayPtr>;

// The stream of this thread: the one it was given, or the default stream of the current device.
StreamId current_stream();
void set_current_stream(StreamId stream, int64_t device);

// How many replays the host has not waited for, of those that are watched.
inline std::atomic<size_t> watched_replays{0};

// Raises where work called `what` would be queued behind a replay that waits at an event.
void require_running(StreamId stream, const std::string& what);
// The same for a name that is made only where it is needed.
template <typename MakeName, typename = std::enable_if_t<std::is_invocable_v<MakeName>>>
void require_running(StreamId stream, const MakeName& make_name) {
  if (watched_replays != 0) require_running(stream, make_name());
}

// The host waits for a stream, or for all. Raises where that would never end, or while a graph is captured.
void wait_for_stream(StreamId stream, const std::string& what);
void wait_for_device(const std::string& what);

void launched(StreamId stream, const ReplayPtr& replay);
// Whether work that is now put on `stream` comes after `replay`, or the host knows that the replay is finished.
bool comes_after(StreamId stream, const ReplayPtr& replay);
// Replays of which the host does not know that they are finished.
Pending unconfirmed();

// torch.npu.Event.
class StreamEvent final : public torch::CustomClassHolder {
 public:
  void record(StreamId stream);
  void wait(StreamId stream);  // the stream waits
  bool query() const;
  void synchronize();  // the host waits

 private:
  Pending after_;
  bool captured_ = false;
  uint64_t capture_ = 0;
  size_t position_ = 0;
  StreamId stream_ = 0;
};

}  // namespace npu_emulator
