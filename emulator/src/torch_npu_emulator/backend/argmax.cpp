// argmax over the last dimension of float32 rows: what greedy sampling asks of logits. The host's library goes through
// them element by element.
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/argmax_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "fallback.h"
#include "vectors.h"

namespace npu_emulator {
namespace {

constexpr int64_t kElementsOfAThread = 1 << 15;

// The first of the largest; a NaN is larger than all.
int64_t first_largest(const float* row, int64_t count) {
  Floats top = Floats{} - INFINITY;
  Ints odd{};  // lanes that met a NaN
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats x = load(row + i);
    top = x > top ? x : top;
    odd |= x != x;
  }
  float maximum = largest(top);
  bool has_nan = false;
  for (int lane = 0; lane < kLanes; ++lane) has_nan |= odd[lane] != 0;
  for (; i < count; ++i) {
    maximum = std::max(maximum, row[i]);
    has_nan |= std::isnan(row[i]);
  }
  const auto* found = has_nan ? std::find_if(row, row + count, [](float x) { return std::isnan(x); })
                              : std::find(row, row + count, maximum);
  return found - row;
}

at::Tensor argmax(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  const bool fits = dim && self.dim() >= 1 && at::maybe_wrap_dim(*dim, self.dim()) == self.dim() - 1 &&
                    self.scalar_type() == at::kFloat && self.is_contiguous() && self.numel() > 0;
  if (!fits) return at::cpu::argmax(self, dim, keepdim);
  const int64_t count = self.size(-1), rows = self.numel() / count;
  at::DimVector sizes(self.sizes());
  keepdim ? void(sizes.back() = 1) : sizes.pop_back();
  auto result = at::empty(sizes, self.options().dtype(at::kLong));
  const auto* from = self.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<int64_t>();
  at::parallel_for(0, rows, std::max<int64_t>(1, kElementsOfAThread / count), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) to[row] = first_largest(from + row * count, count);
  });
  return result;
}

}  // namespace
}  // namespace npu_emulator

TORCH_LIBRARY_IMPL(aten, PrivateUse2, m) { m.impl("argmax", &npu_emulator::argmax); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("argmax", torch::CppFunction::makeFromBoxedFunction<&npu_emulator::run_emulation>());
}
