// A run of a captured graph, which waits at an event until it is recorded.
#pragma once

#include <memory>
#include <string>

#include "streams.h"
#include "tape.h"

namespace npu_emulator {

// Whether replays name operands that hold poison, on standard error (slow).
inline bool trace_poison = false;

// How many replays, one inside the other, this thread runs.
inline thread_local int replaying = 0;

class Replay : public std::enable_shared_from_this<Replay> {
 public:
  Replay(std::shared_ptr<Tape> tape, StreamId stream);

  // Runs until the end, or until an event that is not recorded.
  void resume();

  bool waiting() const { return state_ == State::kWaiting; }
  bool finished() const { return state_ == State::kFinished; }
  // Whether the node has been reached: whether changing it now could meet it while it runs.
  bool has_run(size_t node) const { return finished() || node < position_; }
  const std::shared_ptr<Tape>& tape() const { return tape_; }
  std::string where() const;

 private:
  enum class State { kRunning, kWaiting, kFinished };
  std::shared_ptr<Tape> tape_;
  StreamId stream_;
  size_t position_ = 0;
  State state_ = State::kRunning;
};

// Launches a replay on a stream.
void replay(const std::shared_ptr<Tape>& tape, StreamId stream);

// Runs on what waits for the event, which is recorded now.
void resume_waiting(ExternalEvent& event);

}  // namespace npu_emulator
