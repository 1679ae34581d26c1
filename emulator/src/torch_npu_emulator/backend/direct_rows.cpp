// Direct forms of the operators on rows: norms, rotary embedding, gated activation, cache writes.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "direct.h"
#include "row_operators.h"

namespace npu_emulator {
namespace {

bool is_computed_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

bool takes_norm(const at::Tensor& x, const at::Tensor& gamma) {
  const int64_t dims = gamma.dim();
  return dims >= 1 && dims <= x.dim() && x.sizes().slice(x.dim() - dims) == gamma.sizes() && x.is_contiguous() &&
         gamma.is_contiguous() && x.scalar_type() == gamma.scalar_type() && is_computed_type(x.scalar_type()) &&
         on_one_device({x, gamma});
}

at::Tensor empty_rstd(const at::Tensor& x, const at::Tensor& gamma) {
  at::DimVector sizes(x.sizes());
  std::fill(sizes.end() - gamma.dim(), sizes.end(), 1);
  return at::empty(sizes, x.options().dtype(at::kFloat));
}

// (x, gamma, epsilon) -> (y, rstd)
bool norm(const c10::OperatorHandle&, torch::jit::Stack& stack, size_t first) {
  const at::Tensor x = stack[first].toTensor(), gamma = stack[first + 1].toTensor();
  if (!takes_norm(x, gamma)) return false;
  auto y = at::empty(x.sizes(), x.options()), rstd = empty_rstd(x, gamma);
  rms_norm(x, std::nullopt, gamma, stack[first + 2].toDouble(), y, rstd, std::nullopt);
  finish_directly(stack, first, std::move(y), std::move(rstd));
  return true;
}

// (x1, x2, gamma, epsilon), or with an absent bias before epsilon, -> (y, rstd, x1 + x2)
template <bool kHasBias>
bool add_norm(const c10::OperatorHandle&, torch::jit::Stack& stack, size_t first) {
  const at::Tensor x = stack[first].toTensor(), added = stack[first + 1].toTensor(), gamma = stack[first + 2].toTensor();
  if (kHasBias && !stack[first + 3].isNone()) return false;
  if (!takes_norm(x, gamma) || x.sizes() != added.sizes() || x.scalar_type() != added.scalar_type() ||
      !added.is_contiguous() || !on_one_device({x, added})) {
    return false;
  }
  auto y = at::empty(x.sizes(), x.options()), sum = at::empty(x.sizes(), x.options()), rstd = empty_rstd(x, gamma);
  rms_norm(x, added, gamma, stack[first + (kHasBias ? 4 : 3)].toDouble(), y, rstd, sum);
  finish_directly(stack, first, std::move(y), std::move(rstd), std::move(sum));
  return true;
}

// (x, dimension) -> silu(first half) * second half
bool gated(const c10::OperatorHandle&, torch::jit::Stack& stack, size_t first) {
  const at::Tensor x = stack[first].toTensor();
  const int64_t dim = stack[first + 1].toInt();
  if (x.dim() < 1 || (dim != -1 && dim != x.dim() - 1) || x.size(-1) % 2 != 0 || !x.is_contiguous() ||
      !is_computed_type(x.scalar_type())) {
    return false;
  }
  at::DimVector sizes(x.sizes());
  sizes.back() /= 2;
  auto out = at::empty(sizes, x.options());
  swiglu(x, out);
  finish_directly(stack, first, std::move(out));
  return true;
}

bool has_text(const c10::IValue& value, const char* text) { return value.isString() && value.toStringRef() == text; }

// Whether x [tokens, heads * head_size] can be turned where it lies.
bool takes_rotation(const at::Tensor& positions, const at::Tensor& x, const at::Tensor& cache, int64_t head_size) {
  return x.dim() == 2 && x.size(0) == positions.size(0) && x.size(1) > 0 && x.size(1) % head_size == 0 &&
         x.stride(1) == 1 && x.scalar_type() == cache.scalar_type() && on_one_device({positions, x, cache});
}

at::Tensor rotated(const at::Tensor& positions, const at::Tensor& x, const at::Tensor& cache, int64_t head_size,
                   bool half) {
  auto out = at::empty(x.sizes(), x.options());
  const std::array<int64_t, 3> heads{x.size(0), x.size(1) / head_size, head_size};
  auto by_head = out.view(heads);
  rotate(positions, x.view(heads), cache, half, by_head);
  return out;
}

// (positions, query, key, cosines and sines, head size, sections, mode, cache mode) -> (query, key), turned
bool rotary(const c10::OperatorHandle&, torch::jit::Stack& stack, size_t first) {
  const at::Tensor positions = stack[first].toTensor(), query = stack[first + 1].toTensor(),
                   key = stack[first + 2].toTensor(), cache = stack[first + 3].toTensor();
  const int64_t head_size = stack[first + 4].toInt();
  const auto& sections = stack[first + 5];
  if (!sections.isNone()) {
    if (!sections.isIntList()) return false;
    for (const int64_t section : sections.toIntVector()) {
      if (section != 0) return false;
    }
  }
  const bool half = has_text(stack[first + 6], "half");
  if (!half && !has_text(stack[first + 6], "interleaved")) return false;
  if (!has_text(stack[first + 7], "default")) return false;
  if (positions.dim() != 1 || positions.scalar_type() != at::kLong || !positions.is_contiguous() || cache.dim() != 2 ||
      !cache.is_contiguous() || !is_computed_type(cache.scalar_type())) {
    return false;
  }
  const int64_t step = cache.scalar_type() == at::kFloat ? 16 : 32;
  if (head_size < 1 || head_size % step != 0 || cache.size(1) % step != 0 || cache.size(1) > head_size ||
      !takes_rotation(positions, query, cache, head_size) || !takes_rotation(positions, key, cache, head_size)) {
    return false;
  }
  auto turned_query = rotated(positions, query, cache, head_size, half);
  auto turned_key = rotated(positions, key, cache, head_size, half);
  finish_directly(stack, first, std::move(turned_query), std::move(turned_key));
  return true;
}

// Rows that lie in one of the caches could be overwritten before they are read.
bool takes_rows(const at::Tensor& source, const at::Tensor& cache, const at::Tensor& slots) {
  return !source.storage().is_alias_of(cache.storage()) && source.dim() == 3 && cache.dim() == 4 &&
         cache.sizes().slice(2) == source.sizes().slice(1) && source.scalar_type() == cache.scalar_type() &&
         source.stride(2) == 1 && cache.stride(3) == 1 && slots.size(0) == source.size(0) &&
         on_one_device({source, cache, slots});
}

template <typename Slot>
bool all_below(const at::Tensor& slots, int64_t limit) {
  const auto* slot = slots.const_data_ptr<Slot>();
  return std::all_of(slot, slot + slots.numel(), [&](Slot one) { return one < limit; });
}

// (key, value, key cache, value cache, slots, ...) -> ()
bool write_both(torch::jit::Stack& stack, size_t first) {
  const at::Tensor key = stack[first].toTensor(), value = stack[first + 1].toTensor(), slots = stack[first + 4].toTensor();
  at::Tensor key_cache = stack[first + 2].toTensor(), value_cache = stack[first + 3].toTensor();
  if (value.storage().is_alias_of(key_cache.storage())) return false;
  if (slots.dim() != 1 || !slots.is_contiguous() || (slots.scalar_type() != at::kInt && slots.scalar_type() != at::kLong) ||
      !takes_rows(key, key_cache, slots) || !takes_rows(value, value_cache, slots)) {
    return false;
  }
  // Nothing is written if one slot is beyond a cache; that is an error, which the long way words.
  const int64_t limit = std::min(key_cache.size(0) * key_cache.size(1), value_cache.size(0) * value_cache.size(1));
  if (!(slots.scalar_type() == at::kInt ? all_below<int32_t>(slots, limit) : all_below<int64_t>(slots, limit))) return false;
  write_rows(key, key_cache, slots);
  write_rows(value, value_cache, slots);
  finish_directly(stack, first);
  return true;
}

bool write_cache(const c10::OperatorHandle&, torch::jit::Stack& stack, size_t first) { return write_both(stack, first); }

bool scatter_cache(const c10::OperatorHandle&, torch::jit::Stack& stack, size_t first) {
  const auto& mode = stack[first + 8];
  if (!mode.isNone() && !has_text(mode, "Norm")) return false;
  for (size_t i = 5; i < 8; ++i) {
    if (!stack[first + i].isNone()) return false;
  }
  return write_both(stack, first);
}

[[maybe_unused]] const bool direct_rows_added =
    add_direct_form("npu::npu_rms_norm", &norm) && add_direct_form("npu::npu_add_rms_norm", &add_norm<false>) &&
    add_direct_form("_C_ascend::npu_add_rms_norm_bias", &add_norm<true>) && add_direct_form("npu::npu_swiglu", &gated) &&
    add_direct_form("npu::npu_mrope", &rotary) && add_direct_form("npu::_npu_reshape_and_cache", &write_cache) &&
    add_direct_form("npu::npu_scatter_pa_kv_cache", &scatter_cache);

}  // namespace
}  // namespace npu_emulator
