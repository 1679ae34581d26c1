// Matrix products of few rows with a weight, bfloat16, on processors with a matrix unit: most of a decode step that is
// not attention. The host's library lays a weight out anew in every call; here the weight is the left matrix, as it
// lies in memory, and the few rows are laid out instead.
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <torch/library.h>

#include "fallback.h"
#include "scratch.h"
#include "tiles.h"
#include "vectors.h"

namespace npu_emulator {
namespace {

constexpr int64_t kMostRows = 64;     // beyond it the library's product is the faster one
constexpr int64_t kWeightRows = 32;   // rows of the weight, columns of the result, that are taken at a time
constexpr int64_t kColumns = 16;      // the matrix unit takes rows in sixteens

// `weight` is [K, N], the transpose of a linear layer's [N, K].
bool fits(const at::Tensor& rows, const at::Tensor& weight) {
  return rows.dim() == 2 && weight.dim() == 2 && rows.scalar_type() == at::kBFloat16 &&
         weight.scalar_type() == at::kBFloat16 && rows.size(1) == weight.size(0) && rows.size(0) >= 1 &&
         rows.size(0) <= kMostRows && rows.size(1) >= 2 && rows.size(1) % 2 == 0 && rows.stride(1) == 1 &&
         weight.size(1) >= kWeightRows && weight.stride(0) == 1 && weight.stride(1) >= weight.size(0) &&
         at::native::cpublas::could_pack(at::kBFloat16);
}

// packed[k / 2][m][k % 2] = rows[m][k], with zeros behind the last row.
void pack(const at::Tensor& rows, int64_t columns, uint32_t* packed) {
  const auto* from = rows.const_data_ptr<at::BFloat16>();
  const int64_t pairs = rows.size(1) / 2, stride = rows.stride(0);
  for (int64_t m = 0; m < columns; m += kLanes) {
    const int64_t some = std::min<int64_t>(kLanes, rows.size(0) - m);
    for (int64_t k = 0; k < pairs; k += kLanes) {
      const int64_t deep = std::min<int64_t>(kLanes, pairs - k);
      Lanes square[kLanes]{};
      for (int64_t i = 0; i < some; ++i) {
        std::memcpy(&square[i], from + (m + i) * stride + 2 * k, deep == kLanes ? sizeof(Lanes) : deep * sizeof(uint32_t));
      }
      transpose(square);
      for (int64_t i = 0; i < deep; ++i) std::memcpy(packed + (k + i) * columns + m, &square[i], sizeof(Lanes));
    }
  }
}

// out[m][n] = products[n][m] + bias[n], rounded. `out` and `bias` point at the first n.
void write(const float* products, int64_t rows, int64_t columns, int64_t count, const at::BFloat16* bias,
           at::BFloat16* out, int64_t width) {
  for (int64_t n = 0; n < rows; n += kLanes) {
    const int64_t some = std::min<int64_t>(kLanes, rows - n);
    Floats added{};
    for (int64_t j = 0; bias != nullptr && j < some; ++j) added[j] = widen(bias[n + j]);
    for (int64_t m = 0; m < count; m += kLanes) {
      Lanes square[kLanes]{};
      for (int64_t j = 0; j < some; ++j) std::memcpy(&square[j], products + (n + j) * columns + m, sizeof(Lanes));
      transpose(square);
      for (int64_t i = 0; i < std::min<int64_t>(kLanes, count - m); ++i) {
        at::BFloat16 line[kLanes];
        narrow(std::bit_cast<Floats>(square[i]) + added, line);
        std::memcpy(out + (m + i) * width + n, line, some == kLanes ? sizeof line : some * sizeof(at::BFloat16));
      }
    }
  }
}

at::Tensor multiply(const at::Tensor& rows, const at::Tensor& weight, const at::BFloat16* bias) {
  const int64_t count = rows.size(0), depth = rows.size(1), width = weight.size(1), stride = weight.stride(1);
  const int64_t columns = (count + kColumns - 1) / kColumns * kColumns;
  auto result = at::empty({count, width}, rows.options());
  auto* out = result.mutable_data_ptr<at::BFloat16>();
  const auto* left = weight.const_data_ptr<at::BFloat16>();
  at::parallel_for(0, (width + kWeightRows - 1) / kWeightRows, 1, [&](int64_t begin, int64_t end) {
    alignas(64) float products[kWeightRows * kMostRows];
    static thread_local Scratch own;
    own.restart();
    auto* packed = own.take<uint32_t>(depth / 2 * columns);
    pack(rows, columns, packed);
#ifdef NPU_EMULATOR_TILES
    static_assert(kWeightRows == kTileRows);
    const bool tiled = depth % kTileDepth == 0;
    if (tiled) configure_tiles();
#else
    constexpr bool tiled = false;
#endif
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kWeightRows, some = std::min(kWeightRows, width - first);
      const auto* piece = left + first * stride;
#ifdef NPU_EMULATOR_TILES
      if (tiled && some == kWeightRows) {
        const bool more = block + 1 < end && width - first >= 2 * kWeightRows;
        multiply_tiles(piece, stride, packed, columns, depth, products, more ? piece + kWeightRows * stride : nullptr);
      } else
#endif
      {
        if (tiled) at::native::cpublas::brgemm_release();
        at::native::cpublas::brgemm(some, columns, depth, stride, columns, columns, false, piece,
                                    reinterpret_cast<const at::BFloat16*>(packed), products, true);
      }
      write(products, some, columns, count, bias == nullptr ? nullptr : bias + first, out + first, width);
    }
    at::native::cpublas::brgemm_release();
  });
  return result;
}

at::Tensor mm(const at::Tensor& rows, const at::Tensor& weight) {
  return fits(rows, weight) ? multiply(rows, weight, nullptr) : at::cpu::mm(rows, weight);
}

at::Tensor addmm(const at::Tensor& bias, const at::Tensor& rows, const at::Tensor& weight, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  const bool plain = beta.equal(1) && alpha.equal(1) && fits(rows, weight) && bias.dim() == 1 && bias.is_contiguous() &&
                     bias.scalar_type() == at::kBFloat16 && bias.size(0) == weight.size(1);
  return plain ? multiply(rows, weight, bias.const_data_ptr<at::BFloat16>())
               : at::cpu::addmm(bias, rows, weight, beta, alpha);
}

}  // namespace
}  // namespace npu_emulator

TORCH_LIBRARY_IMPL(aten, PrivateUse2, m) {
  m.impl("mm", &npu_emulator::mm);
  m.impl("addmm", &npu_emulator::addmm);
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mm", torch::CppFunction::makeFromBoxedFunction<&npu_emulator::run_emulation>());
  m.impl("addmm", torch::CppFunction::makeFromBoxedFunction<&npu_emulator::run_emulation>());
}
