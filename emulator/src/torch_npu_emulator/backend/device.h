// The emulated device: its memory, its device guard, its hooks.
//
// "Device memory" is host memory, taken and counted per device. Everything runs synchronously on the calling
// thread; what of streams outlasts a call is in streams.h.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "counters.h"
#include "streams.h"

namespace npu_emulator {

constexpr auto kNpu = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 16;
// Also the distance between the header of a block and its data: hardware hands out 512-byte aligned addresses.
constexpr size_t kAlignment = 512;

inline thread_local c10::DeviceIndex current_device = 0;
inline int device_count = 8;
inline int64_t device_bytes = int64_t{2} << 30;

struct MemoryUse {
  std::atomic<int64_t> allocated{0};
  std::atomic<int64_t> peak{0};
};
inline std::array<MemoryUse, kMaxDevices> memory_use;

inline c10::DeviceIndex checked_index(int64_t index) {
  TORCH_CHECK(index >= 0 && index < device_count, "npu:", index, " does not exist: the emulated machine has ",
              device_count, " devices (NPU_EMU_DEVICES)");
  return static_cast<c10::DeviceIndex>(index);
}

// Bytes of a device are taken and given back here, whoever allocated them.
inline void take_bytes(c10::DeviceIndex device, int64_t bytes) {
  auto& use = memory_use[device];
  const int64_t now = use.allocated.fetch_add(bytes) + bytes;
  if (now > device_bytes) {
    use.allocated -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", bytes, " bytes on npu:",
                     static_cast<int>(device), ", which has ", device_bytes, " bytes in all, of which ", now - bytes,
                     " are allocated (emulated NPU: NPU_EMU_TOTAL_GIB sets the size)");
  }
  int64_t peak = use.peak.load();
  while (now > peak && !use.peak.compare_exchange_weak(peak, now)) {
  }
}
inline void give_bytes(c10::DeviceIndex device, int64_t bytes) { memory_use[device].allocated -= bytes; }

// Set on a thread that captures a graph: memory comes from the graph's pool.
inline thread_local c10::DataPtr (*allocate_in_capture)(size_t bytes) = nullptr;

class NpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    return allocate_in_capture != nullptr && bytes != 0 ? allocate_in_capture(bytes) : allocate_uncaptured(bytes);
  }
  c10::DataPtr allocate_uncaptured(size_t bytes) {
    const c10::Device device(kNpu, current_device);
    if (bytes == 0) return {nullptr, nullptr, &free_block, device};
    const auto size = static_cast<int64_t>(bytes);
    take_bytes(current_device, size);
    void* base = nullptr;
    if (posix_memalign(&base, kAlignment, bytes + kAlignment) != 0) {
      give_bytes(current_device, size);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the host of the emulated NPU has no ", bytes, " bytes left");
    }
    *static_cast<Header*>(base) = {size, current_device};
    void* data = static_cast<char*>(base) + kAlignment;
    return {data, data, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

 private:
  struct Header {
    int64_t bytes;
    c10::DeviceIndex device;
  };
  static void free_block(void* data) {
    if (data == nullptr) return;
    auto* header = reinterpret_cast<Header*>(static_cast<char*>(data) - kAlignment);
    give_bytes(header->device, header->bytes);
    std::free(header);
  }
};
inline NpuAllocator npu_allocator;

class NpuGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType static_type = kNpu;
  c10::DeviceType type() const override { return kNpu; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old(kNpu, current_device);
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override { return {kNpu, current_device}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) current_device = checked_index(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int = 0) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool = false) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {
    ++counters.synchronizes;
    wait_for_stream(current_stream(), "synchronize");
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    ++counters.synchronizes;
    wait_for_device("synchronize");
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

class NpuHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  // Random numbers come from the CPU generator: seeds give the CPU's streams, not an NPU's.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<at::CPUGeneratorImpl>(); }
  at::Device getDeviceFromPtr(void*) const override { return {kNpu, current_device}; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count); }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_device = checked_index(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto old = current_device;
    current_device = checked_index(index);
    return old;
  }
  // torch's contract: a negative index leaves the device as it is.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device : exchangeDevice(index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = npu_allocator.allocate(bytes);
    if (storage.nbytes() != 0 && bytes != 0) {
      std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    }
    storage.set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

}  // namespace npu_emulator
