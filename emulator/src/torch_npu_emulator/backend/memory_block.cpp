#include "memory_block.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "alias.h"
#include "capture.h"
#include "device.h"
#include "faults.h"

namespace npu_emulator {

void poison(void* data, size_t bytes) {
  auto* words = static_cast<uint32_t*>(data);
  std::fill_n(words, bytes / sizeof(uint32_t), kPoison);
  std::memcpy(static_cast<char*>(data) + bytes / sizeof(uint32_t) * sizeof(uint32_t), &kPoison,
              bytes % sizeof(uint32_t));
}

void Block::overwrite() {
  if (data != nullptr && !fault(Fault::kNoPoison)) poison(data, bytes);
  written = false;
}

namespace {

using Reference = std::shared_ptr<Block>;

void give_up(void* context) {
  const std::unique_ptr<Reference> reference(static_cast<Reference*>(context));
  memory_given_up(*reference);
}

void forget(void* context) { delete static_cast<Reference*>(context); }

}  // namespace

c10::DataPtr owned(std::shared_ptr<Block> block, c10::Device device) {
  void* data = block->data;
  return {data, new Reference(std::move(block)), &give_up, device};
}

std::shared_ptr<Block> block_of(const c10::Storage& storage) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto& held = storage.data_ptr();
  if (held.get_deleter() == &give_up || held.get_deleter() == &forget) {
    return *static_cast<Reference*>(held.get_context());
  }
  auto block = std::make_shared<Block>();
  block->bytes = storage.nbytes();
  const auto device = held.device();
  block->region = std::make_shared<Region>();
  block->region->bytes = block->bytes;
  block->data = storage.mutable_data();
  block->region->memory = storage.set_data_ptr(c10::DataPtr(nullptr, device));
  storage.set_data_ptr_noswap(owned(block, device));
  return block;
}

c10::Storage weak_storage(std::shared_ptr<Block> block, size_t bytes, c10::Device device) {
  void* data = block->data;
  return {c10::Storage::use_byte_size_t(), bytes,
          c10::DataPtr(data, new Reference(std::move(block)), &forget, device),
          device.is_cpu() ? c10::GetCPUAllocator() : static_cast<c10::Allocator*>(&npu_allocator),
          /*resizable=*/false};
}

at::Tensor weak_reference(const at::Tensor& tensor) {
  TORCH_CHECK(is_npu(tensor), "_weak_ref_tensor: expected an npu tensor, got one on ", tensor.device());
  const auto& storage = tensor.storage();
  return tensor_on(weak_storage(block_of(storage), storage.nbytes(), storage.device()), tensor,
                   c10::DispatchKey::PrivateUse1);
}

}  // namespace npu_emulator
