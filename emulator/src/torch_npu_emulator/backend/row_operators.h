// What row_operators.cpp computes, for those of its users that are compiled too.
#pragma once

#include <ATen/ATen.h>

namespace npu_emulator {

// y = x / rms(x) * gamma of every row of gamma's length; with `added`, x + added (rounded, kept in `sum`) in x's place.
void rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& added, const at::Tensor& gamma, double epsilon,
              at::Tensor& y, at::Tensor& rstd, const std::optional<at::Tensor>& sum);

// Turns the first `rotary` channels of every head of x [T, heads, D] by the angles of its position: pairs (i, i + r/2)
// if `half`, else (2i, 2i + 1). cache [positions, rotary]: cosines in the first half of a row, sines in the second.
void rotate(const at::Tensor& positions, const at::Tensor& x, const at::Tensor& cache, bool half, at::Tensor& out);

// out [rows, width] = silu(first half) * second half of the rows of x [rows, 2 * width].
void swiglu(const at::Tensor& x, at::Tensor& out);

// cache[slot / page, slot % page] = row of source [T, heads, D] for all slots that are not negative. Slots are int32 or
// int64.
void write_rows(const at::Tensor& source, at::Tensor& cache, const at::Tensor& slots);

}  // namespace npu_emulator
