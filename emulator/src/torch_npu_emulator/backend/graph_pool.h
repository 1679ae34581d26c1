// The memory of captured graphs.
//
// As on hardware, memory that is given up inside a pool is handed out again, to the same capture and to later ones: graphs
// of one pool overwrite each other's results. What hardware does where memory happens to be reused is done here in every
// case in which it could be reused, by poison, so that a stale read does not depend on luck.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "memory_block.h"

namespace npu_emulator {

class GraphPool : public std::enable_shared_from_this<GraphPool> {
 public:
  static std::shared_ptr<GraphPool> of(int64_t id);  // made on first use; gone with its last graph

  // Free memory of at least `bytes` bytes, if the pool has some that is not much too large.
  std::shared_ptr<Region> reuse(size_t bytes);
  void add(const std::shared_ptr<Block>& block);
  void take_back(const std::shared_ptr<Block>& block);

  // Orders captures and the ends of blocks' lives.
  int64_t tick() { return ++clock_; }

  // Poisons what a replay of the graph captured from `begun` to `ended` may overwrite: the blocks that were free when
  // its capture began; those of later captures, which may lie where its own temporaries did; its own results.
  void overwrite_before_replay(uint64_t tape, int64_t begun, int64_t ended);
  // A replay of the graph is done. Its temporaries were poisoned on the way, where later ones may lie.
  void mark_written(uint64_t tape);

 private:
  std::mutex mutex_;
  std::multimap<size_t, std::shared_ptr<Region>> free_;
  std::vector<std::weak_ptr<Block>> blocks_;
  int64_t clock_ = 0;
};

}  // namespace npu_emulator
