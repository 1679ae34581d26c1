// The arithmetic of one tile: rows of queries against a chunk of keys.
#pragma once

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "attention.h"

namespace npu_emulator {

constexpr int64_t kChunk = 256;     // keys per step
constexpr int64_t kMaxRows = 256;   // query rows per tile
constexpr int64_t kFewRows = 8;     // up to here row-by-row arithmetic beats a matrix product

inline float widen(float x) { return x; }
inline float widen(at::BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.x) << 16); }
inline float widen(at::Half x) { return static_cast<float>(x); }

// exp(x) for x <= 0, relative error below 2e-7, 0 below -87: range reduction by powers of two and a polynomial, in a form
// that compilers turn into vector code.
inline float exp_nonpositive(float x) {
  constexpr float kLog2E = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // adding and subtracting it rounds to the nearest integer
  const float clamped = std::max(x, -87.0f);
  const float n = (clamped * kLog2E + kRound) - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const auto scale = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return x < -87.0f ? 0.0f : p * scale;
}

// Scratch memory of one thread, and the operations on it.
template <typename T>
class Tile {
 public:
  Tile(int64_t head_size, int64_t value_size)
      : head_size_(head_size),
        value_size_(value_size),
        queries(kMaxRows * head_size),
        wide_queries(kMaxRows * head_size),
        logits(kMaxRows * kChunk),
        sums(kMaxRows * value_size),
        maxima(kMaxRows),
        denominators(kMaxRows),
        weights_(kMaxRows * kChunk),
        keys_(kChunk * head_size),
        values_(kChunk * value_size),
        wide_(kChunk * std::max(head_size, value_size)) {}

  void start(int64_t rows) {
    rows_ = rows;
    if (!packed()) {
      for (int64_t i = 0; i < rows * head_size_; ++i) wide_queries[i] = widen(queries[i]);
    }
    std::fill_n(sums.data(), rows * value_size_, 0.0f);
    std::fill_n(maxima.data(), rows, kMinusInfinity);
    std::fill_n(denominators.data(), rows, 0.0f);
  }

  // logits[rows, first .. first + count) = queries . keys^T; `key` points at the first key.
  void multiply_keys(const T* key, int64_t row_stride, int64_t first, int64_t count) {
    if (few()) {
      for (int64_t n = 0; n < count; ++n) dot_row(key + n * row_stride, first + n);
      return;
    }
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (packed()) {
        pack_keys(key, row_stride, first, count);
        return;
      }
    }
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t d = 0; d < head_size_; ++d) wide_[n * head_size_ + d] = widen(key[n * row_stride + d]);
    }
    auto result = matrix(logits.data() + first, rows_, count, kChunk);
    at::cpu::mm_out(result, matrix(wide_queries.data(), rows_, head_size_, head_size_),
                    matrix(wide_.data(), count, head_size_, head_size_).t());
  }

  // After all keys of a chunk: the matrix product of the packed form.
  void finish_keys(int64_t count) {
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (packed()) {
        at::native::cpublas::brgemm(rows_, count, head_size_, head_size_, kChunk, kChunk, false, queries.data(),
                                    keys_.data(), logits.data(), true);
      }
    }
  }

  // The online softmax of a chunk: logits become weights, sums and denominators are brought to the new maxima.
  void soften(int64_t count, float scale) {
    for (int64_t m = 0; m < rows_; ++m) {
      float* row = logits.data() + m * kChunk;
      float maximum = kMinusInfinity;
#pragma omp simd reduction(max : maximum)
      for (int64_t n = 0; n < count; ++n) {
        row[n] *= scale;
        maximum = std::max(maximum, row[n]);
      }
      maximum = std::max(maximum, maxima[m]);
      if (maximum == kMinusInfinity) {
        std::fill_n(row, count, 0.0f);
        continue;
      }
      const float shrink = exp_nonpositive(maxima[m] - maximum);
      float total = 0.0f;
#pragma omp simd reduction(+ : total)
      for (int64_t n = 0; n < count; ++n) {
        row[n] = exp_nonpositive(row[n] - maximum);
        total += row[n];
      }
      denominators[m] = denominators[m] * shrink + total;
      maxima[m] = maximum;
      if (shrink != 1.0f) {
        float* sum = sums.data() + m * value_size_;
#pragma omp simd
        for (int64_t d = 0; d < value_size_; ++d) sum[d] *= shrink;
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
    auto result = matrix(sums.data(), rows_, value_size_, value_size_);
    at::cpu::addmm_out(result, result, matrix(logits.data() + first, rows_, count, kChunk),
                       matrix(wide_.data(), count, value_size_, value_size_), 1, 1);
  }

  void finish_values(int64_t count) {
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (!packed()) return;
      // Pairs of keys are multiplied together: an odd last one gets a partner of weight and value zero.
      const int64_t even = (count + 1) & ~int64_t{1};
      for (int64_t m = 0; m < rows_; ++m) {
        const float* row = logits.data() + m * kChunk;
        at::BFloat16* narrow = weights_.data() + m * kChunk;
        for (int64_t n = 0; n < count; ++n) narrow[n] = at::BFloat16(row[n]);
        if (even != count) narrow[count] = at::BFloat16(0.0f);
      }
      if (even != count) {
        for (int64_t d = 0; d < value_size_; ++d) {
          values_[(count / 2) * 2 * value_size_ + 2 * d + 1] = at::BFloat16(0.0f);
        }
      }
      at::native::cpublas::brgemm(rows_, value_size_, even, kChunk, value_size_, value_size_, true, weights_.data(),
                                  values_.data(), sums.data(), true);
    }
  }

  // Matrix units keep a configuration per thread, which has to be given back.
  void release() {
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (has_matrix_unit()) at::native::cpublas::brgemm_release();
    }
  }

 private:
  int64_t head_size_, value_size_, rows_ = 0;

 public:
  std::vector<T> queries;            // [rows, head_size]
  std::vector<float> wide_queries;   // the same
  std::vector<float> logits;         // [rows, kChunk]: logits, then weights
  std::vector<float> sums;           // [rows, value_size]: sum of weights * values
  std::vector<float> maxima, denominators;  // [rows]

 private:
  bool few() const { return rows_ <= kFewRows; }
  static bool has_matrix_unit() {
    static const bool yes = at::native::cpublas::could_pack(at::kBFloat16);
    return yes;
  }
  bool packed() const {
    return std::is_same_v<T, at::BFloat16> && !few() && has_matrix_unit() && head_size_ % 2 == 0;
  }

  // at::cpu:: functions are called without the dispatcher, so that no mode of the calling thread sees them.
  static at::Tensor matrix(float* data, int64_t rows, int64_t columns, int64_t row_stride) {
    return at::from_blob(data, {rows, columns}, {row_stride, 1}, at::kFloat);
  }

  void dot_row(const T* key, int64_t column) {
    for (int64_t m = 0; m < rows_; ++m) {
      const float* query = wide_queries.data() + m * head_size_;
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
        float* sum = sums.data() + m * value_size_;
#pragma omp simd
        for (int64_t d = 0; d < value_size_; ++d) sum[d] += weight * widen(row[d]);
      }
    }
  }

  // keys_[d / 2][n][d % 2] = key[n][d]: the transpose, in pairs of channels.
  void pack_keys(const T* key, int64_t row_stride, int64_t first, int64_t count) {
    auto* packed = reinterpret_cast<uint32_t*>(keys_.data());
    for (int64_t d = 0; d < head_size_ / 2; ++d) {
      for (int64_t n = 0; n < count; ++n) {
        std::memcpy(&packed[d * kChunk + first + n], key + n * row_stride + 2 * d, sizeof(uint32_t));
      }
    }
  }

  // values_[n / 2][d][n % 2] = value[n][d]: pairs of keys.
  void pack_values(const T* value, int64_t row_stride, int64_t first, int64_t count) {
    for (int64_t n = 0; n < count; ++n) {
      const int64_t at = first + n;
      T* pair = values_.data() + (at / 2) * 2 * value_size_ + at % 2;
      const T* row = value + n * row_stride;
      for (int64_t d = 0; d < value_size_; ++d) pair[2 * d] = row[d];
    }
  }

  std::vector<T> weights_;  // [rows, kChunk]
  std::vector<T> keys_, values_;
  std::vector<float> wide_;
};

}  // namespace npu_emulator
