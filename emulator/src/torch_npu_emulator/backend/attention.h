// Fused attention over paged or dense keys and values, on host memory.
//
// softmax(scale * Q K^T + mask) V with an online softmax over chunks of keys: every key and value is read where it lies
// (a page of the cache, a strided view), once per tile of query rows. All query heads that share a key-value head
// are rows of one tile, so that grouped queries read the cache once. Logits, softmax and both sums are float32.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace npu_emulator {

constexpr int64_t kUnlimited = std::numeric_limits<int32_t>::max();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Row `query_begin + i` of batch `query_batch` is query i. Key j is row `kv_begin + j` of batch `kv_batch`, or, with a
// block table, row `j % page` of the page that entry `j / page` of the table's row `kv_batch` names.
struct Sequence {
  int64_t query_batch, query_begin, query_length, kv_batch, kv_begin, kv_length;
};

// Strides of a [batch, row, head, channel] view, in elements; channels are contiguous.
struct Strides {
  int64_t batch, row, head;
};

struct Problem {
  std::vector<Sequence> sequences;
  Strides query, key, value, out, lse;
  int64_t heads, kv_heads, head_size, value_size;
  float scale;

  const int32_t* block_table = nullptr;  // [sequences, columns], row stride below
  int64_t block_table_stride = 0, page = 0;

  // Query i sees the keys from i + offset - before to i + offset + after, where offset is 0, or, aligned at the end,
  // kv_length - query_length; of those, the keys that `mask` does not mark.
  bool aligned_at_end = false;
  int64_t before = kUnlimited, after = kUnlimited;
  const bool* mask = nullptr;  // [batch or 1, rows, keys]; true: not seen
  int64_t mask_batch = 0, mask_row = 0;

  const float* sink = nullptr;  // [heads]: one more logit per head, which belongs to no value
};

// Instantiated for float, at::BFloat16, at::Half. out and lse are written for the rows of the sequences only. A row that
// sees no key gets out = 0 and lse = +inf.
template <typename T>
void attend(const Problem& problem, const T* query, const T* key, const T* value, T* out, float* lse);

// The same for tensors of one of these types.
void attend_tensors(const Problem& problem, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const at::Tensor& out, float* lse);

// Six numbers each, in the order of the struct.
std::vector<Sequence> sequences_from(at::IntArrayRef numbers);

// Raises if the problem's block table names a block that a cache of `blocks` blocks does not have.
void check_blocks(const Problem& problem, int64_t blocks);

}  // namespace npu_emulator
