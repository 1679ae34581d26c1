// CPU tensors that share the memory of npu tensors, and back. Nothing is copied.
//
// The new storage owns a reference to the storage it shares, so either side keeps the memory alive.
#pragma once

#include <ATen/ATen.h>

#include "device.h"

namespace npu_emulator {

inline bool is_npu(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kNpu; }

inline c10::DataPtr shared_data(const c10::Storage& storage, c10::Device device) {
  auto* owner = new c10::Storage(storage);
  return {owner->mutable_data(), owner, [](void* p) { delete static_cast<c10::Storage*>(p); }, device};
}

// What an operator allocated on the host as its result is the device's memory from then on, and counts as such.
struct Adopted {
  c10::Storage storage;
  c10::DeviceIndex device;
  int64_t bytes;
};
inline c10::DataPtr adopted_data(const c10::Storage& storage, c10::Device device) {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  take_bytes(device.index(), bytes);
  auto* owner = new Adopted{storage, device.index(), bytes};
  return {owner->storage.mutable_data(), owner,
          [](void* p) {
            auto* adopted = static_cast<Adopted*>(p);
            give_bytes(adopted->device, adopted->bytes);
            delete adopted;
          },
          device};
}

inline at::Tensor tensor_on(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) result._set_conj(true);
  if (like.is_neg()) result._set_neg(true);
  return result;
}

inline at::Tensor share(const at::Tensor& tensor, c10::Device device, c10::Allocator* allocator, c10::DispatchKey key,
                        c10::DataPtr (*data)(const c10::Storage&, c10::Device)) {
  TORCH_CHECK(tensor.layout() == c10::kStrided, "the emulated NPU holds strided tensors only, got layout ",
              tensor.layout());
  const auto& storage = tensor.storage();
  return tensor_on(c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), data(storage, device),
                                allocator, /*resizable=*/true),
                   tensor, key);
}

inline at::Tensor to_cpu_alias(const at::Tensor& tensor) {
  return share(tensor, c10::Device(c10::kCPU), c10::GetCPUAllocator(), c10::DispatchKey::CPU, &shared_data);
}

inline at::Tensor to_npu_alias(const at::Tensor& tensor, c10::DeviceIndex device) {
  return share(tensor, c10::Device(kNpu, device), &npu_allocator, c10::DispatchKey::PrivateUse1, &adopted_data);
}

}  // namespace npu_emulator
