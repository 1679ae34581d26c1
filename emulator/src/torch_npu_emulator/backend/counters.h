// What this process did with the device: launches by operator name, copies across the bus, synchronisations.
//
// Counting is always on: an increment costs tens of nanoseconds against the microseconds of an operator call.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

namespace npu_emulator {

struct Counters {
  std::atomic<int64_t> device_to_host{0}, device_to_host_bytes{0};
  std::atomic<int64_t> host_to_device{0}, host_to_device_bytes{0};
  std::atomic<int64_t> device_to_device{0}, device_to_device_bytes{0};
  // Keys and values that attention reads, each sequence its own once per call; by token, and by whole page.
  std::atomic<int64_t> kv_token_bytes{0}, kv_page_bytes{0};
  std::atomic<int64_t> synchronizes{0};
  // Operators whose result size depends on device data (nonzero, boolean indexing, ...): on hardware each of them
  // waits for the stream without being asked to.
  std::atomic<int64_t> implicit_synchronizes{0};

  std::atomic<int64_t> graph_captures{0}, graph_replays{0}, task_updates{0};

  // `operator_id` is an address that identifies the operator for the life of the process, so that its name is made
  // once and not at every launch.
  template <typename MakeName>
  void launch(const void* operator_id, const MakeName& make_name) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto& entry = launches_[operator_id];
    if (entry.name.empty()) entry.name = make_name();
    ++entry.count;
  }

  std::map<std::string, int64_t> launches() {
    const std::lock_guard<std::mutex> lock(mutex);
    std::map<std::string, int64_t> by_name;
    for (const auto& item : launches_) {
      if (item.second.count != 0) by_name[item.second.name] += item.second.count;
    }
    return by_name;
  }

  void reset() {
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto& item : launches_) item.second.count = 0;
    for (auto* value : {&device_to_host, &device_to_host_bytes, &host_to_device, &host_to_device_bytes,
                        &device_to_device, &device_to_device_bytes, &kv_token_bytes, &kv_page_bytes, &synchronizes, &implicit_synchronizes,
                        &graph_captures, &graph_replays, &task_updates}) {
      *value = 0;
    }
  }

  // Public for the fork handlers alone: a child must not inherit a lock that another thread of its parent holds.
  std::mutex mutex;

 private:
  struct Entry {
    std::string name;
    int64_t count = 0;
  };
  std::unordered_map<const void*, Entry> launches_;
};

inline Counters counters;

}  // namespace npu_emulator
