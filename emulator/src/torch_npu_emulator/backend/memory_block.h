// Memory that may be referred to without being owned: by captured graphs and by weak references.
//
// Hardware keeps addresses: a captured kernel reads what lies at its addresses when the graph is replayed, whoever owns
// them by then. Here a block of memory that someone refers to weakly stays mapped until the last reference is gone, and
// is overwritten with poison when its owner gives it up, so that a stale read gives NaN or an absurd integer.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <limits>
#include <memory>

namespace npu_emulator {

class GraphPool;
class Tape;

// 0x7fff7fff is a NaN as float32, 0x7fff one as float16 and bfloat16, four of them one as float64; as int32 it is
// 2147450879, as int64 9223231297218904063: no index, length, block or slot of anything.
constexpr uint32_t kPoison = 0x7fff7fff;
void poison(void* data, size_t bytes);

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Mapped memory. Blocks of one graph pool follow each other in it.
struct Region {
  c10::DataPtr memory;
  size_t bytes = 0;
};

// What one owner had, from its allocation until it was given up.
struct Block {
  std::shared_ptr<Region> region;
  void* data = nullptr;
  size_t bytes = 0;
  std::weak_ptr<GraphPool> pool;  // the graph pool it was allocated from, if any
  uint64_t tape = 0;              // the capture that allocated it
  int64_t allocated_at = 0;       // in captures begun, ended and blocks given up: see `GraphPool`
  int64_t given_up_at = kNever;
  bool temporary = false;  // its own graph may have reused the memory
  bool written = false;    // by a replay, since it was last poisoned

  void overwrite();
};

// The block of a storage on the device. From then on the storage's memory outlives the storage while the block is
// referred to.
std::shared_ptr<Block> block_of(const c10::Storage& storage);

// Memory handed out as an owner would hold it.
c10::DataPtr owned(std::shared_ptr<Block> block, c10::Device device);

// A storage on `device` that refers to the block and does not own it.
c10::Storage weak_storage(std::shared_ptr<Block> block, size_t bytes, c10::Device device);

// A tensor like `tensor`, on the same memory, which does not keep its owner alive.
at::Tensor weak_reference(const at::Tensor& tensor);

}  // namespace npu_emulator
