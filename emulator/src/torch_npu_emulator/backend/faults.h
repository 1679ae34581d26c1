// Faults that tests of tests switch on (NPU_EMU_FAULT).
#pragma once

namespace npu_emulator {

enum class Fault : int {
  kIgnoreTaskUpdate = 1,  // a task update is accepted and has no effect
  kStaleEvent = 2,        // a replay does not wait at events
  kSkipReplay = 8,        // a replay runs nothing
  kNoPoison = 4,          // memory that was given up keeps what it holds
};

inline int active_faults = 0;
inline bool fault(Fault which) { return (active_faults & static_cast<int>(which)) != 0; }

}  // namespace npu_emulator
