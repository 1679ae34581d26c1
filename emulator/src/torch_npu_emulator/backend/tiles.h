// Products of bfloat16 matrices on a processor's matrix unit, where the compiler is told of one (Intel AMX).
#pragma once

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define NPU_EMULATOR_TILES

#include <c10/util/BFloat16.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

namespace npu_emulator {

constexpr int64_t kTileRows = 32;   // rows of the left matrix that are multiplied together
constexpr int64_t kTileDepth = 32;  // numbers in a tile's row

// The matrix unit's eight tiles, used as 2 x 2 sums, 2 pieces of the weight, 2 of the rows; all 16 rows of 64 bytes.
inline void configure_tiles() {
  struct {
    uint8_t palette = 1, start = 0, reserved[14]{};
    uint16_t bytes[16]{};
    uint8_t rows[16]{};
  } configuration;
  std::fill_n(configuration.bytes, 8, 64);
  std::fill_n(configuration.rows, 8, 16);
  static_assert(sizeof configuration == 64);
  // Not _tile_loadconfig: GCC's says that it reads a pointer's size, and what is behind that is never stored.
  asm volatile("ldtilecfg %0" : : "m"(configuration) : "memory");
}

// Fetches the lines of a block of kTileRows rows of a weight, in the order of memory, some at a time.
class Fetch {
 public:
  Fetch(const at::BFloat16* block, int64_t stride, int64_t lines) : row_(block), stride_(stride), lines_(lines) {}
  void some() {
    if (row_ == nullptr) return;
    for (int i = 0; i < kTileRows; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(row_) + 64 * line_, _MM_HINT_T1);
      if (++line_ == lines_) {
        line_ = 0;
        row_ += stride_;
      }
    }
  }

 private:
  const at::BFloat16* row_;
  int64_t stride_, lines_, line_ = 0;
};

// products[32][columns] = weight[32][depth] . rows^T, for `kWide` ? 32 : 16 columns from `packed` on. `next` is what comes
// after it, and is fetched behind the arithmetic: memory, which takes longer, is never waited for.
template <bool kWide>
inline void multiply_block(const at::BFloat16* weight, int64_t stride, const uint32_t* packed, int64_t columns,
                           int64_t depth, float* products, Fetch& next) {
  asm volatile("" : : : "memory");  // nor does the compiler know that tiles are loaded from memory
  _tile_zero(0);
  _tile_zero(1);
  if (kWide) _tile_zero(2);
  if (kWide) _tile_zero(3);
  for (int64_t k = 0; k < depth; k += kTileDepth) {
    _tile_loadd(4, weight + k, stride * 2);
    _tile_loadd(5, weight + 16 * stride + k, stride * 2);
    _tile_loadd(6, packed + k / 2 * columns, columns * 4);
    if (kWide) _tile_loadd(7, packed + k / 2 * columns + 16, columns * 4);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if (kWide) _tile_dpbf16ps(2, 4, 7);
    if (kWide) _tile_dpbf16ps(3, 5, 7);
    next.some();
  }
  _tile_stored(0, products, columns * 4);
  _tile_stored(1, products + 16 * columns, columns * 4);
  if (kWide) _tile_stored(2, products + 16, columns * 4);
  if (kWide) _tile_stored(3, products + 16 * columns + 16, columns * 4);
}

// products[32][columns] = weight[32][depth] . rows^T; `columns` is a multiple of 16. `next`: the block that comes after it.
inline void multiply_tiles(const at::BFloat16* weight, int64_t stride, const uint32_t* packed, int64_t columns,
                           int64_t depth, float* products, const at::BFloat16* next) {
  for (int64_t m = 0; m < columns; m += 32) {
    Fetch ahead(m == 0 ? next : nullptr, stride, depth / kTileDepth);
    if (columns - m >= 32) {
      multiply_block<true>(weight, stride, packed + m, columns, depth, products + m, ahead);
    } else {
      multiply_block<false>(weight, stride, packed + m, columns, depth, products + m, ahead);
    }
  }
}

}  // namespace npu_emulator

#endif
