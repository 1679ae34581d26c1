// The arithmetic of one tile: rows of queries against a chunk of keys.
#pragma once

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention.h"
#include "scratch.h"
#include "vectors.h"

namespace npu_emulator {

constexpr int64_t kChunk = 256;     // keys per step
constexpr int64_t kMaxRows = 256;    // query rows per tile
constexpr int64_t kSlimRows = 16;   // up to here, with a matrix unit, keys are multiplied as they lie, not transposed
constexpr int64_t kFewRows = 8;     // up to here, without a matrix unit, row-by-row arithmetic beats a product

// The working memory of one thread, and the operations on it.
template <typename T>
class Tile {
 public:
  Tile(int64_t max_rows, int64_t head_size, int64_t value_size)
      : head_size_(head_size),
        value_size_(value_size),
        matrix_unit_(std::is_same_v<T, at::BFloat16> && at::native::cpublas::could_pack(at::kBFloat16)),
        slim_(matrix_unit_ && max_rows <= kSlimRows) {
    scratch().restart();
    queries = take<T>(max_rows * head_size);
    logits = take<float>(max_rows * kChunk);
    sums = take<float>(max_rows * value_size);
    maxima = take<float>(max_rows);
    denominators = take<float>(max_rows);
    if (packed()) {
      weights_ = take<T>(max_rows * kChunk);
      values_ = take<T>(kChunk * value_size);
      if (slim_) {
        columns_ = take<float>(kChunk * kSlimRows);
        packed_queries_ = take<T>(head_size * kSlimRows);
      } else {
        keys_ = take<T>(kChunk * head_size);
      }
      return;
    }
    wide_queries_ = take<float>(max_rows * head_size);
    wide_ = take<float>(kChunk * std::max(head_size, value_size));
  }

  void start(int64_t rows) {
    rows_ = rows;
    if (!packed()) {
      for (int64_t i = 0; i < rows * head_size_; ++i) wide_queries_[i] = widen(queries[i]);
    }
    if (slim()) pack_queries();
    std::fill_n(sums, rows * value_size_, 0.0f);
    std::fill_n(maxima, rows, kMinusInfinity);
    std::fill_n(denominators, rows, 0.0f);
  }

  // logits[rows, first .. first + count) = queries . keys^T; `key` points at the first key.
  void multiply_keys(const T* key, int64_t row_stride, int64_t first, int64_t count) {
    if (few()) {
      for (int64_t n = 0; n < count; ++n) dot_row(key + n * row_stride, first + n);
      return;
    }
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (slim()) {
        at::native::cpublas::brgemm(count, kSlimRows, head_size_, row_stride, kSlimRows, kSlimRows, false, key,
                                    packed_queries_, columns_ + first * kSlimRows, true);
        return;
      }
      if (packed()) {
        pack_keys(key, row_stride, first, count);
        return;
      }
    }
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t d = 0; d < head_size_; ++d) wide_[n * head_size_ + d] = widen(key[n * row_stride + d]);
    }
    auto result = matrix(logits + first, rows_, count, kChunk);
    at::cpu::mm_out(result, matrix(wide_queries_, rows_, head_size_, head_size_),
                    matrix(wide_, count, head_size_, head_size_).t());
  }

  // After all keys of a chunk: the matrix product of the packed form; of the slim one, keys become columns.
  void finish_keys(int64_t count) {
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (slim()) {
        for (int64_t m = 0; m < rows_; ++m) {
          float* row = logits + m * kChunk;
          for (int64_t n = 0; n < count; ++n) row[n] = columns_[n * kSlimRows + m];
        }
      } else if (packed()) {
        at::native::cpublas::brgemm(rows_, count, head_size_, head_size_, kChunk, kChunk, false, queries,
                                    keys_, logits, true);
      }
    }
  }

  // Logits [rows, count] become weights, and what was summed before is scaled to them. `ahead(row)` is called before
  // each row: arithmetic is what memory can be fetched behind.
  template <typename Ahead>
  void soften(int64_t count, float scale, const Ahead& ahead) {
    const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
    for (int64_t m = 0; m < rows_; ++m) {
      ahead(m);
      float* row = logits + m * kChunk;
      T* weights = packed() ? weights_ + m * kChunk : nullptr;
      std::fill(row + count, row + padded, kMinusInfinity);
      Floats top = Floats{} + kMinusInfinity;
      for (int64_t n = 0; n < padded; n += kLanes) {
        const Floats x = load(row + n);
        top = x > top ? x : top;
      }
      const float maximum = std::max(maxima[m], largest(top));
      if (maximum == kMinusInfinity) {  // nothing is seen yet, or only what is not a number
        if (std::any_of(row, row + count, [](float x) { return std::isnan(x); })) denominators[m] = std::nanf("");
        if (packed()) {
          std::fill_n(weights, padded, T(0));
        } else {
          std::fill_n(row, padded, 0.0f);
        }
        continue;
      }
      const float unit = scale * kLog2E;
      Floats total{};
      for (int64_t n = 0; n < padded; n += kLanes) {
        const Floats weight = exp2_nonpositive((load(row + n) - maximum) * unit);
        total += weight;
        if constexpr (std::is_same_v<T, at::BFloat16>) {
          if (packed()) {
            narrow(weight, weights + n);
            continue;
          }
        }
        store(row + n, weight);
      }
      const float shrink = exp_nonpositive((maxima[m] - maximum) * scale);
      denominators[m] = denominators[m] * shrink + sum(total);
      maxima[m] = maximum;
      if (shrink != 1.0f) {
        float* part = sums + m * value_size_;
#pragma omp simd
        for (int64_t d = 0; d < value_size_; ++d) part[d] *= shrink;
      }
    }
  }

  // sums += weights[rows, first .. first + count) . values; `value` points at the first value.
  void multiply_values(const T* value, int64_t row_stride, int64_t first, int64_t count) {
    if (few()) {
      add_values(value, row_stride, first, count);
      return;
    }
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (packed()) {
        pack_values(value, row_stride, first, count);
        return;
      }
    }
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t d = 0; d < value_size_; ++d) wide_[n * value_size_ + d] = widen(value[n * row_stride + d]);
    }
    auto result = matrix(sums, rows_, value_size_, value_size_);
    at::cpu::addmm_out(result, result, matrix(logits + first, rows_, count, kChunk),
                       matrix(wide_, count, value_size_, value_size_), 1, 1);
  }

  void finish_values(int64_t count) {
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (!packed()) return;
      // Pairs of keys are multiplied together: an odd last one gets a partner of weight and value zero.
      const int64_t even = (count + 1) & ~int64_t{1};  // the weight behind the last one is zero already
      if (even != count) {
        for (int64_t d = 0; d < value_size_; ++d) {
          values_[(count / 2) * 2 * value_size_ + 2 * d + 1] = at::BFloat16(0.0f);
        }
      }
      // In columns of 64: a wider panel of values does not stay in the first-level cache.
      for (int64_t d = 0; d < value_size_; d += 64) {
        at::native::cpublas::brgemm(rows_, std::min<int64_t>(64, value_size_ - d), even, kChunk, value_size_,
                                    value_size_, true, weights_, values_ + 2 * d, sums + d, true);
      }
    }
  }

  // Matrix units keep a configuration per thread, which has to be given back.
  void release() {
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (packed()) at::native::cpublas::brgemm_release();
    }
  }

  T* queries;      // [rows, head_size]
  float* logits;   // [rows, kChunk]: logits, then weights
  float* sums;     // [rows, value_size]: sum of weights * values
  float *maxima, *denominators;  // [rows]; maxima of logits without the scale

 private:
  static Scratch& scratch() {
    static thread_local Scratch own;
    return own;
  }
  template <typename Element>
  static Element* take(int64_t count) {
    return scratch().take<Element>(count);
  }

  bool few() const { return rows_ <= kFewRows && !matrix_unit_; }
  bool packed() const { return matrix_unit_; }
  bool slim() const { return slim_; }

  // packed_queries_[d / 2][m][d % 2] = queries[m][d], with zero rows behind the last one.
  void pack_queries() {
    std::fill_n(packed_queries_, head_size_ * kSlimRows, T(0));
    for (int64_t m = 0; m < rows_; ++m) {
      for (int64_t d = 0; d < head_size_; ++d) {
        packed_queries_[(d / 2) * 2 * kSlimRows + 2 * m + d % 2] = queries[m * head_size_ + d];
      }
    }
  }

  // at::cpu:: functions are called without the dispatcher, so that no mode of the calling thread sees them.
  static at::Tensor matrix(float* data, int64_t rows, int64_t columns, int64_t row_stride) {
    return at::from_blob(data, {rows, columns}, {row_stride, 1}, at::kFloat);
  }

  void dot_row(const T* key, int64_t column) {
    for (int64_t m = 0; m < rows_; ++m) {
      const float* query = wide_queries_ + m * head_size_;
      float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < head_size_; ++d) dot += query[d] * widen(key[d]);
      logits[m * kChunk + column] = dot;
    }
  }

  void add_values(const T* value, int64_t row_stride, int64_t first, int64_t count) {
    for (int64_t n = 0; n < count; ++n) {
      const T* row = value + n * row_stride;
      for (int64_t m = 0; m < rows_; ++m) {
        const float weight = logits[m * kChunk + first + n];
        float* sum = sums + m * value_size_;
#pragma omp simd
        for (int64_t d = 0; d < value_size_; ++d) sum[d] += weight * widen(row[d]);
      }
    }
  }

  // keys_[d / 2][n][d % 2] = key[n][d]: the transpose, in pairs of channels.
  void pack_keys(const T* key, int64_t row_stride, int64_t first, int64_t count) {
    auto* packed = reinterpret_cast<uint32_t*>(keys_) + first;
    const int64_t pairs = head_size_ / 2;
    int64_t n = 0;
    for (; n + kLanes <= count; n += kLanes) {
      for (int64_t d = 0; d + kLanes <= pairs; d += kLanes) {
        transpose_pairs(key + n * row_stride + 2 * d, row_stride, packed + d * kChunk + n);
      }
      copy_pairs(key, row_stride, packed, n, n + kLanes, pairs / kLanes * kLanes, pairs);
    }
    copy_pairs(key, row_stride, packed, n, count, 0, pairs);
  }

  static void copy_pairs(const T* key, int64_t row_stride, uint32_t* packed, int64_t n_begin, int64_t n_end,
                         int64_t d_begin, int64_t d_end) {
    for (int64_t n = n_begin; n < n_end; ++n) {
      for (int64_t d = d_begin; d < d_end; ++d) {
        std::memcpy(&packed[d * kChunk + n], key + n * row_stride + 2 * d, sizeof(uint32_t));
      }
    }
  }

  // A square of pairs: packed[d][n] = key[n][d].
  static void transpose_pairs(const T* key, int64_t row_stride, uint32_t* packed) {
    Lanes rows[kLanes];
    for (int n = 0; n < kLanes; ++n) std::memcpy(&rows[n], key + n * row_stride, sizeof(Lanes));
    transpose(rows);
    for (int d = 0; d < kLanes; ++d) std::memcpy(packed + d * kChunk, &rows[d], sizeof(Lanes));
  }

  // values_[n / 2][d][n % 2] = value[n][d]: pairs of keys.
  void pack_values(const T* value, int64_t row_stride, int64_t first, int64_t count) {
    int64_t n = 0;
    auto put = [&](int64_t at, const T* row) {
      T* pair = values_ + (at / 2) * 2 * value_size_ + at % 2;
      for (int64_t d = 0; d < value_size_; ++d) pair[2 * d] = row[d];
    };
    if (first % 2 == 1 && count > 0) put(first, value + row_stride * n++);
    for (; n + 1 < count; n += 2) {
      auto* pairs = reinterpret_cast<uint32_t*>(values_) + (first + n) / 2 * value_size_;
      const auto* even = reinterpret_cast<const uint16_t*>(value + n * row_stride);
      const auto* odd = reinterpret_cast<const uint16_t*>(value + (n + 1) * row_stride);
#pragma omp simd
      for (int64_t d = 0; d < value_size_; ++d) pairs[d] = even[d] | static_cast<uint32_t>(odd[d]) << 16;
    }
    if (n < count) put(first + n, value + n * row_stride);
  }

  int64_t head_size_, value_size_, rows_ = 0;
  bool matrix_unit_;  // products of bfloat16 matrices with float32 sums are done in hardware here
  bool slim_;
  T* weights_ = nullptr;  // [rows, kChunk]
  T *keys_ = nullptr, *values_ = nullptr, *packed_queries_ = nullptr;
  float* columns_ = nullptr;  // [keys, kSlimRows]: logits, transposed
  float *wide_queries_ = nullptr, *wide_ = nullptr;
};

}  // namespace npu_emulator
