// Direct form of the kernel wheel's merge of two attention partials, npu::lse_merge, for results of 16 bits.
//
// The operator is defined by the reference in Python, which also serves float32, where results are compared bit for bit,
// and every call with a partial that saw no key. Its stand-in switches this form on.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "direct.h"
#include "rows.h"

namespace npu_emulator {
namespace {

constexpr int64_t kReplicas = 8;  // how often the wheel's first stage writes the log-sum-exp of a row

// A result of attention, and the log-sum-exp of its rows.
struct Partial {
  at::Tensor out, lse;
  int64_t rows, replicas;

  Partial(const c10::IValue& given_out, const c10::IValue& given_lse) : out(given_out.toTensor()), lse(given_lse.toTensor()) {
    rows = out.dim() < 1 || out.size(-1) == 0 ? 0 : out.numel() / out.size(-1);
    replicas = rows != 0 && lse.numel() == rows * kReplicas ? kReplicas : 1;
  }
  bool taken() const {
    return rows != 0 && out.size(-1) % kLanes == 0 && out.is_contiguous() && lse.is_contiguous() &&
           (out.scalar_type() == at::kBFloat16 || out.scalar_type() == at::kFloat) && lse.scalar_type() == at::kFloat &&
           lse.numel() == rows * replicas;
  }
  float level(int64_t row) const { return lse.const_data_ptr<float>()[row * replicas]; }
  void widen_row_to(int64_t row, float* to) const {
    const int64_t width = out.size(-1);
    if (out.scalar_type() == at::kFloat) {
      std::copy_n(out.const_data_ptr<float>() + row * width, width, to);
    } else {
      widen_row(out.const_data_ptr<at::BFloat16>() + row * width, to, width);
    }
  }
};

// (o1, o2, lse1, lse2, code of the result's type) -> w1 o1 + w2 o2, where w = softmax(lse1, lse2)
bool merge(const c10::OperatorHandle&, torch::jit::Stack& stack, size_t first) {
  const Partial one(stack[first], stack[first + 2]), other(stack[first + 1], stack[first + 3]);
  const int64_t code = stack[first + 4].toInt();
  const bool to_bfloat16 = code == 1 || (code == 0 && one.out.scalar_type() == at::kBFloat16);
  if (!to_bfloat16 || !one.taken() || !other.taken() || one.out.numel() != other.out.numel() ||
      one.out.size(-1) != other.out.size(-1) || !on_one_device({one.out, other.out, one.lse, other.lse})) {
    return false;
  }
  std::vector<float> weights(one.rows), other_weights(one.rows);
  for (int64_t row = 0; row < one.rows; ++row) {
    const float above = other.level(row) - one.level(row);
    weights[row] = 1.0f / (1.0f + std::exp(above));
    other_weights[row] = 1.0f / (1.0f + std::exp(-above));
    // Neither is without weight, as it is where a level is no number.
    if (!(std::isfinite(above) && weights[row] > 0.0f && other_weights[row] > 0.0f)) return false;
  }
  auto result = at::empty(one.out.sizes(), one.out.options().dtype(at::kBFloat16));
  const int64_t width = one.out.size(-1);
  std::vector<float> a(width), b(width);
  for (int64_t row = 0; row < one.rows; ++row) {
    one.widen_row_to(row, a.data());
    other.widen_row_to(row, b.data());
    const float weight = weights[row], other_weight = other_weights[row];
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) a[i] = a[i] * weight + b[i] * other_weight;
    narrow_row(a.data(), result.mutable_data_ptr<at::BFloat16>() + row * width, width);
  }
  finish_directly(stack, first, std::move(result));
  return true;
}

[[maybe_unused]] const bool direct_merge_added = add_direct_form("npu::lse_merge", &merge, /*on=*/false);

}  // namespace
}  // namespace npu_emulator
