// Rows of bfloat16 and float16 numbers to and from float32.
#pragma once

#include <type_traits>

#include "vectors.h"

namespace npu_emulator {

// Rows are widened into float buffers, computed there, and narrowed: loops that compilers turn into vectors.
template <typename T>
inline void widen_row(const T* from, float* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = widen(from[i]);
}

template <typename T>
inline void narrow_row(const float* from, T* to, int64_t count) {
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) narrow(load(from + i), to + i);
    for (; i < count; ++i) to[i] = narrow(from[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
  }
}

}  // namespace npu_emulator
