// Vectors of float32 numbers: what the compiled operators are made of.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace npu_emulator {

inline float widen(float x) { return x; }
inline float widen(at::BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.x) << 16); }
inline float widen(at::Half x) { return static_cast<float>(x); }

// Vectors as wide as the widest registers; GCC cuts them where a machine has narrower ones.
constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint32_t Lanes __attribute__((vector_size(kLanes * sizeof(uint32_t))));

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

template <int kBlock>
inline void exchange(Lanes* rows) {
  Lanes upper{}, lower{};
  for (int i = 0; i < kLanes; ++i) {
    upper[i] = (i & kBlock) ? kLanes + i - kBlock : i;
    lower[i] = (i & kBlock) ? kLanes + i : i + kBlock;
  }
  for (int i = 0; i < kLanes; ++i) {
    if (i & kBlock) continue;
    const Lanes a = rows[i], b = rows[i + kBlock];
    rows[i] = __builtin_shuffle(a, b, upper);
    rows[i + kBlock] = __builtin_shuffle(a, b, lower);
  }
}
// A square of kLanes rows, by exchanging ever smaller blocks across the diagonal.
inline void transpose(Lanes* rows) {
  exchange<8>(rows);
  exchange<4>(rows);
  exchange<2>(rows);
  exchange<1>(rows);
}

// A lane with the one kHalf lanes away, then with half of that, until each holds the result of all.
template <int kHalf, typename Combine>
inline void fold(Floats& x, const Combine& combine) {
  Ints other{};
  for (int i = 0; i < kLanes; ++i) other[i] = i ^ kHalf;
  x = combine(x, __builtin_shuffle(x, other));
  if constexpr (kHalf > 1) fold<kHalf / 2>(x, combine);
}

// The nearest bfloat16, ties to even; NaN stays NaN.
inline at::BFloat16 narrow(float from) {
  const auto bits = std::bit_cast<uint32_t>(from);
  const auto nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return at::BFloat16(static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : nearest),
                      at::BFloat16::from_bits());
}
inline void narrow(Floats from, at::BFloat16* to) {
#ifdef __AVX512BF16__
  const auto bits = _mm512_cvtneps_pbh(from);
  std::memcpy(to, &bits, sizeof bits);
#else
  alignas(64) float values[kLanes];
  store(values, from);
#pragma omp simd
  for (int i = 0; i < kLanes; ++i) to[i] = narrow(values[i]);
#endif
}

constexpr float kLog2E = 1.44269504088896341f;

// 2^x for x <= 0, relative error below 2e-7, 1 at 0, 0 below -126, NaN for NaN: a whole power and a polynomial.
inline Floats exp2_nonpositive(Floats x) {
#ifdef __AVX512F__
  const Floats n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  constexpr float kRound = 12582912.0f;  // adding and subtracting it rounds to the nearest integer
  const auto small = x < -126.0f;
  x = small ? Floats{} - 126.0f : x;
  const Floats n = (x + kRound) - kRound;
#endif
  const Floats r = x - n;
  Floats p = r * 1.3264727214e-3f + 9.6715128125e-3f;
  p = p * r + 5.5507337448e-2f;
  p = p * r + 2.4022242083e-1f;
  p = p * r + 6.9314697760e-1f;
  p = p * r + 1.0f;
#ifdef __AVX512F__
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, Floats{} - 126.0f, _CMP_NLT_UQ), p, n);
#else
  const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
  return small ? Floats{} : p * std::bit_cast<Floats>(power);
#endif
}
inline Floats exp_nonpositive(Floats x) { return exp2_nonpositive(x * kLog2E); }
inline float exp_nonpositive(float x) { return exp_nonpositive(Floats{} + x)[0]; }

// Over all lanes.
inline float sum(Floats x) {
  fold<8>(x, [](Floats a, Floats b) { return a + b; });
  return x[0];
}
inline float largest(Floats x) {
  fold<8>(x, [](Floats a, Floats b) { return a > b ? a : b; });
  return x[0];
}

}  // namespace npu_emulator
