// Operators on rows that every layer of a model calls: norm, rotary embedding, gated activation, cache writes. Made of
// torch's own operators each would be ten or more of them, most of a decode step's time on small batches.
//
// Arguments were checked in Python; here only what would read or write foreign memory is. All compute in float32 and
// round once, to the tensors' type, at the end.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "row_operators.h"
#include "rows.h"

namespace npu_emulator {
namespace {

// Elements a thread is given at least.
constexpr int64_t kGrain = 1 << 15;

template <typename Body>
void for_rows(int64_t rows, int64_t elements_of_a_row, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, elements_of_a_row));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

// Calls body with a value of the C++ type.
template <typename Body>
void with_type(at::ScalarType type, const Body& body) {
  switch (type) {
    case at::kFloat: return body(float{});
    case at::kBFloat16: return body(at::BFloat16{});
    case at::kHalf: return body(at::Half{});
    default: TORCH_CHECK(false, "npu_emulator: row operators take float32, bfloat16 and float16, not ", type);
  }
}

// Float buffers of a thread, each of `count` elements and whole vectors.
template <size_t kBuffers>
std::array<float*, kBuffers> buffers(int64_t count) {
  static thread_local std::vector<float> memory;
  const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  if (memory.size() < static_cast<size_t>(padded) * kBuffers) memory.resize(padded * kBuffers);
  std::array<float*, kBuffers> result;
  for (size_t i = 0; i < kBuffers; ++i) result[i] = memory.data() + i * padded;
  return result;
}

void check_alike(const at::Tensor& a, const at::Tensor& b, const char* what) {
  TORCH_CHECK(a.is_contiguous() && b.is_contiguous() && a.scalar_type() == b.scalar_type() && a.numel() == b.numel(),
              "npu_emulator: ", what);
}

// Turns pairs of channels of one head; angle: their cosines, then their sines.
template <bool kHalf>
void turn(float* head, const float* angle, int64_t pairs) {
  constexpr int64_t step = kHalf ? 1 : 2;
  const int64_t other = kHalf ? pairs : 1;
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const float first = head[i * step], second = head[i * step + other];
    head[i * step] = first * angle[i] - second * angle[pairs + i];
    head[i * step + other] = second * angle[i] + first * angle[pairs + i];
  }
}

template <typename Slot>
void write_to(const at::Tensor& source, at::Tensor& cache, const Slot* slots) {
  const int64_t page = cache.size(1), bytes = source.element_size(), heads = source.size(1);
  const auto row_bytes = static_cast<size_t>(source.size(2) * bytes);
  const auto* from = static_cast<const char*>(source.const_data_ptr());
  auto* to = static_cast<char*>(cache.mutable_data_ptr());
  for (int64_t t = 0; t < source.size(0); ++t) {  // in order: of two rows with one slot the later one stays
    const int64_t slot = slots[t];
    if (slot < 0) continue;
    TORCH_CHECK_INDEX(slot < cache.size(0) * page, "npu_emulator: write_rows: slot ", slot);
    for (int64_t h = 0; h < heads; ++h) {
      std::memcpy(to + (slot / page * cache.stride(0) + slot % page * cache.stride(1) + h * cache.stride(2)) * bytes,
                  from + (t * source.stride(0) + h * source.stride(1)) * bytes, row_bytes);
    }
  }
}

}  // namespace

void rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& added, const at::Tensor& gamma, double epsilon,
              at::Tensor& y, at::Tensor& rstd, const std::optional<at::Tensor>& sum) {
  const int64_t width = gamma.numel(), rows = width == 0 ? 0 : x.numel() / width;
  check_alike(x, y, "rms_norm: y");
  TORCH_CHECK(gamma.is_contiguous() && gamma.scalar_type() == x.scalar_type() && rows * width == x.numel() &&
                  rstd.is_contiguous() && rstd.scalar_type() == at::kFloat && rstd.numel() == rows &&
                  added.has_value() == sum.has_value(),
              "npu_emulator: rms_norm");
  if (added) {
    check_alike(x, *added, "rms_norm: added");
    check_alike(x, *sum, "rms_norm: sum");
  }
  with_type(x.scalar_type(), [&](auto type) {
    using scalar_t = decltype(type);
    const auto* in = x.const_data_ptr<scalar_t>();
    const auto* more = added ? added->const_data_ptr<scalar_t>() : nullptr;
    auto* total = sum ? sum->mutable_data_ptr<scalar_t>() : nullptr;
    const auto* scale = gamma.const_data_ptr<scalar_t>();
    auto* out = y.mutable_data_ptr<scalar_t>();
    auto* factors = rstd.mutable_data_ptr<float>();
    for_rows(rows, width, [&](int64_t row) {
      const auto [values, other] = buffers<2>(width);
      widen_row(in + row * width, values, width);
      if (more != nullptr) {
        widen_row(more + row * width, other, width);
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) values[i] += other[i];
        narrow_row(values, total + row * width, width);
        widen_row(total + row * width, values, width);
      }
      float squares = 0.0f;
      const float* value = values;
#pragma omp simd reduction(+ : squares)
      for (int64_t i = 0; i < width; ++i) squares += value[i] * value[i];
      const float factor = 1.0f / std::sqrt(squares / static_cast<float>(width) + static_cast<float>(epsilon));
      factors[row] = factor;
      widen_row(scale, other, width);
      float* result = values;
      const float* by = other;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) result[i] = result[i] * factor * by[i];
      narrow_row(values, out + row * width, width);
    });
  });
}

void rotate(const at::Tensor& positions, const at::Tensor& x, const at::Tensor& cache, bool half, at::Tensor& out) {
  TORCH_CHECK(x.dim() == 3 && out.sizes() == x.sizes() && out.is_contiguous() && x.stride(2) == 1 &&
                  (x.size(1) <= 1 || x.stride(1) == x.size(2)) && cache.dim() == 2 && cache.is_contiguous() &&
                  cache.size(1) % 2 == 0 && cache.size(1) <= x.size(2) && positions.dim() == 1 &&
                  positions.is_contiguous() && positions.size(0) == x.size(0) &&
                  positions.scalar_type() == at::kLong && cache.scalar_type() == x.scalar_type() &&
                  out.scalar_type() == x.scalar_type(),
              "npu_emulator: rotate");
  const int64_t heads = x.size(1), channels = x.size(2), rotary = cache.size(1), pairs = rotary / 2;
  const auto* position = positions.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < x.size(0); ++t) {
    TORCH_CHECK_INDEX(position[t] >= 0 && position[t] < cache.size(0), "position ", position[t],
                      " is outside of the cosine and sine cache of ", cache.size(0), " rows");
  }
  const int64_t stride = x.stride(0);
  with_type(x.scalar_type(), [&](auto type) {
    using scalar_t = decltype(type);
    const auto* in = x.const_data_ptr<scalar_t>();
    const auto* angles = cache.const_data_ptr<scalar_t>();
    auto* target = out.mutable_data_ptr<scalar_t>();
    for_rows(x.size(0), heads * channels, [&](int64_t t) {
      const auto [row, angle] = buffers<2>(heads * channels);
      widen_row(in + t * stride, row, heads * channels);
      widen_row(angles + position[t] * rotary, angle, rotary);
      for (int64_t h = 0; h < heads; ++h) {
        half ? turn<true>(row + h * channels, angle, pairs) : turn<false>(row + h * channels, angle, pairs);
      }
      narrow_row(row, target + t * heads * channels, heads * channels);
    });
  });
}

void swiglu(const at::Tensor& x, at::Tensor& out) {
  const int64_t width = out.size(-1), rows = width == 0 ? 0 : out.numel() / width;
  TORCH_CHECK(x.is_contiguous() && out.is_contiguous() && x.scalar_type() == out.scalar_type() &&
                  x.numel() == 2 * out.numel(),
              "npu_emulator: swiglu");
  with_type(x.scalar_type(), [&](auto type) {
    using scalar_t = decltype(type);
    const auto* in = x.const_data_ptr<scalar_t>();
    auto* result = out.mutable_data_ptr<scalar_t>();
    for_rows(rows, width, [&](int64_t row) {
      const auto [gate, up] = buffers<2>(width);
      widen_row(in + row * 2 * width, gate, width);
      widen_row(in + row * 2 * width + width, up, width);
      for (int64_t i = 0; i < width; i += kLanes) {
        const Floats g = load(gate + i);
        const Floats small = exp_nonpositive(g > 0.0f ? -g : g);  // exp(-|g|), which does not overflow
        const Floats sigmoid = (g > 0.0f ? Floats{} + 1.0f : small) / (small + 1.0f);
        store(gate + i, g * sigmoid * load(up + i));
      }
      narrow_row(gate, result + row * width, width);
    });
  });
}

void write_rows(const at::Tensor& source, at::Tensor& cache, const at::Tensor& slots) {
  TORCH_CHECK(source.dim() == 3 && cache.dim() == 4 && cache.size(2) == source.size(1) &&
                  cache.size(3) == source.size(2) && source.stride(2) == 1 && cache.stride(3) == 1 &&
                  source.scalar_type() == cache.scalar_type() && slots.dim() == 1 && slots.is_contiguous() &&
                  slots.size(0) == source.size(0),
              "npu_emulator: write_rows");
  if (slots.scalar_type() == at::kInt) {
    write_to(source, cache, slots.const_data_ptr<int32_t>());
  } else {
    write_to(source, cache, slots.const_data_ptr<int64_t>());
  }
}

TORCH_LIBRARY_FRAGMENT(npu_emulator, m) {
  m.def("rms_norm(Tensor x, Tensor? added, Tensor gamma, float epsilon, Tensor(a!) y, Tensor(b!) rstd, "
        "Tensor(c!)? sum) -> ()");
  m.def("rotate(Tensor positions, Tensor x, Tensor cache, bool half, Tensor(a!) out) -> ()");
  m.def("swiglu(Tensor x, Tensor(a!) out) -> ()");
  m.def("write_rows(Tensor source, Tensor(a!) cache, Tensor slots) -> ()");
}
TORCH_LIBRARY_IMPL(npu_emulator, CPU, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("rotate", &rotate);
  m.impl("swiglu", &swiglu);
  m.impl("write_rows", &write_rows);
}

}  // namespace npu_emulator
