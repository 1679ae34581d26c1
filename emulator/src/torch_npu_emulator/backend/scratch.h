// Working memory of a thread.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

namespace npu_emulator {

// Memory that a thread keeps for its next call: fresh pages would cost more than small calls compute.
class Scratch {
 public:
  // Gives `count` elements, not initialised. All that was given before stays valid until restart().
  template <typename Element>
  Element* take(int64_t count) {
    const auto bytes = (static_cast<size_t>(count) * sizeof(Element) + 63) / 64 * 64;
    if (used_ + bytes > blocks_.back().size) grow(bytes);
    auto* result = reinterpret_cast<Element*>(blocks_.back().data.get() + used_);
    used_ += bytes;
    return result;
  }

  // One block of the size that was needed last time replaces the blocks that it grew by.
  void restart() {
    if (blocks_.size() > 1) {
      size_t total = 0;
      for (const auto& block : blocks_) total += block.size;
      blocks_.clear();
      blocks_.push_back(make(total));
    }
    used_ = 0;
  }

  Scratch() { blocks_.push_back(make(size_t{1} << 16)); }

 private:
  struct Block {
    std::unique_ptr<char, decltype(&std::free)> data;
    size_t size;
  };
  static Block make(size_t size) {
    auto* data = static_cast<char*>(std::aligned_alloc(64, size));
    TORCH_CHECK(data != nullptr, "out of host memory");
    return {{data, &std::free}, size};
  }
  void grow(size_t bytes) {
    blocks_.push_back(make(std::max(bytes, 2 * blocks_.back().size)));
    used_ = 0;
  }
  std::vector<Block> blocks_;
  size_t used_ = 0;
};

}  // namespace npu_emulator
