#include "graph_pool.h"

#include <algorithm>

namespace npu_emulator {

std::shared_ptr<GraphPool> GraphPool::of(int64_t id) {
  static std::mutex mutex;
  static std::map<int64_t, std::weak_ptr<GraphPool>> pools;
  const std::lock_guard<std::mutex> lock(mutex);
  auto pool = pools[id].lock();
  if (!pool) {
    pool = std::make_shared<GraphPool>();
    pools[id] = pool;
  }
  return pool;
}

std::shared_ptr<Region> GraphPool::reuse(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = free_.lower_bound(bytes);
  if (found == free_.end() || found->first > 2 * bytes) return nullptr;
  auto region = std::move(found->second);
  free_.erase(found);
  return region;
}

void GraphPool::add(const std::shared_ptr<Block>& block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  block->allocated_at = tick();
  blocks_.erase(std::remove_if(blocks_.begin(), blocks_.end(), [](const auto& known) { return known.expired(); }),
                blocks_.end());
  blocks_.push_back(block);
}

void GraphPool::take_back(const std::shared_ptr<Block>& block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  block->given_up_at = tick();
  free_.emplace(block->region->bytes, block->region);
}

void GraphPool::overwrite_before_replay(uint64_t tape, int64_t begun, int64_t ended) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& known : blocks_) {
    const auto block = known.lock();
    if (!block || !block->written) continue;
    if (block->tape == tape || block->given_up_at < begun || block->allocated_at > ended) block->overwrite();
  }
}

void GraphPool::mark_written(uint64_t tape) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& known : blocks_) {
    const auto block = known.lock();
    if (block && block->tape == tape && !block->temporary) block->written = true;
  }
}

}  // namespace npu_emulator
