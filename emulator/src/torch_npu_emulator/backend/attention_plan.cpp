// Direct form of the fused attention: all layers of a model's step call it with the same shapes and lengths, so that what
// Python has checked for one of them holds for the others.
//
// A call is known by all of its arguments but what the tensors hold. A call of a new kind goes to Python, which checks
// it and says here what it comes down to, if that does not depend on the contents of tensors; the next one of the kind
// is computed from that.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <bit>
#include <unordered_map>

#include "attention.h"
#include "counters.h"
#include "direct.h"

namespace npu_emulator {
namespace {

// Kinds of calls that are remembered. A step brings one or two new ones.
constexpr size_t kRemembered = 64;

using Kind = std::vector<int64_t>;

struct KindHash {
  size_t operator()(const Kind& kind) const {
    uint64_t hash = 14695981039346656037u;  // FNV-1a, by word
    for (const int64_t word : kind) hash = (hash ^ static_cast<uint64_t>(word)) * 1099511628211u;
    return hash ^ hash >> 32;
  }
};

// The problem without pointers and strides, and what it counts as.
struct Plan {
  Problem problem;
  bool with_lse;
  int64_t token_bytes, page_bytes;
};

struct Memory {
  std::unordered_map<Kind, Plan, KindHash> plans;
  Kind asked;             // the kind of the last call
  bool answers = false;   // whether a plan that comes now is the one of that call
};
thread_local Memory memory;

// Where the schema has the arguments that are read here.
struct Places {
  size_t key = 0, value = 0, block_table = 0;
  std::optional<size_t> out;
};

const Places& places(const c10::OperatorHandle& op) {
  static thread_local std::unordered_map<const void*, Places> known;
  const auto& schema = op.schema();
  const auto found = known.find(&schema);
  if (found != known.end()) return found->second;
  const auto place = [&](const char* name) { return static_cast<size_t>(schema.argumentIndexWithName(name).value()); };
  Places result{place("key"), place("value"), place("block_table"), std::nullopt};
  if (const auto out = schema.argumentIndexWithName("out")) result.out = static_cast<size_t>(*out);
  return known.emplace(&schema, result).first->second;
}

class KindOfCall {
 public:
  explicit KindOfCall(Kind& kind) : kind_(kind) {}

  // False where the arguments are not of a sort that can be compared.
  bool add(const c10::IValue& value) {
    if (value.isNone()) {
      kind_.push_back(0);
    } else if (value.isTensor()) {
      return add(value.toTensor());
    } else if (value.isInt()) {
      add(2, value.toInt());
    } else if (value.isBool()) {
      add(3, value.toBool());
    } else if (value.isDouble()) {
      add(4, std::bit_cast<int64_t>(value.toDouble()));
    } else if (value.isString()) {
      const auto& text = value.toStringRef();
      add(5, static_cast<int64_t>(text.size()));
      kind_.insert(kind_.end(), text.begin(), text.end());
    } else if (value.isIntList()) {
      const auto list = value.toIntList();
      add(6, static_cast<int64_t>(list.size()));
      for (size_t i = 0; i < list.size(); ++i) kind_.push_back(list.get(i));
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      add(7, static_cast<int64_t>(list.size()));
      for (size_t i = 0; i < list.size(); ++i) {
        if (!add(list.get(i))) return false;
      }
    } else {
      return false;
    }
    return true;
  }

 private:
  void add(int64_t sort, int64_t number) {
    kind_.push_back(sort);
    kind_.push_back(number);
  }
  bool add(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided) return false;
    if (!device_) device_ = tensor.device().type();
    if (tensor.device().type() != *device_) return false;
    add(1, static_cast<int64_t>(tensor.scalar_type()));
    kind_.push_back(tensor.dim());
    kind_.insert(kind_.end(), tensor.sizes().begin(), tensor.sizes().end());
    kind_.insert(kind_.end(), tensor.strides().begin(), tensor.strides().end());
    return true;
  }

  Kind& kind_;
  std::optional<at::DeviceType> device_;
};

bool attend_as_planned(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t first) {
  memory.answers = false;
  auto& kind = memory.asked;
  kind.assign(1, reinterpret_cast<int64_t>(&op.schema()));
  KindOfCall call(kind);
  for (size_t i = first; i < stack.size(); ++i) {
    if (!call.add(stack[i])) return false;
  }
  const auto found = memory.plans.find(kind);
  if (found == memory.plans.end()) {
    memory.answers = true;
    return false;
  }
  const Plan& plan = found->second;
  const auto& at = places(op);
  const at::Tensor query = stack[first].toTensor(), key = stack[first + at.key].toTensor(),
                   value = stack[first + at.value].toTensor(), table = stack[first + at.block_table].toTensor();
  at::Tensor out, lse;
  if (at.out) {
    const auto given = stack[first + *at.out].toTensorList();
    out = given.get(0);
    lse = given.get(1);
  } else {
    out = at::empty({query.size(0), plan.problem.heads, plan.problem.value_size}, query.options());
    const auto numbers = query.options().dtype(at::kFloat);
    lse = plan.with_lse ? at::empty({query.size(0), plan.problem.heads, 1}, numbers) : at::empty({1}, numbers);
    if (!plan.with_lse) *static_cast<float*>(lse.mutable_data_ptr()) = 0.0f;
  }
  Problem problem = plan.problem;
  problem.query = {0, query.stride(0), query.stride(1)};
  problem.key = {key.stride(0), key.stride(1), problem.head_size};
  problem.value = {value.stride(0), value.stride(1), problem.value_size};
  problem.out = {0, out.stride(0), out.stride(1)};
  if (plan.with_lse) problem.lse = {0, lse.stride(0), lse.stride(1)};
  problem.block_table = static_cast<const int32_t*>(table.const_data_ptr());
  problem.block_table_stride = table.stride(0);
  problem.page = key.size(1);
  check_blocks(problem, key.size(0));
  attend_tensors(problem, query, key, value, out, plan.with_lse ? static_cast<float*>(lse.mutable_data_ptr()) : nullptr);
  counters.kv_token_bytes += plan.token_bytes;
  counters.kv_page_bytes += plan.page_bytes;
  finish_directly(stack, first, std::move(out), std::move(lse));
  return true;
}

// What the call that Python was just asked for comes down to: queries [tokens, heads, channels], of which each belongs to
// a sequence, against a paged cache [blocks, page, heads * channels], without mask and sink.
void plan_attention(at::IntArrayRef sequences, int64_t heads, int64_t kv_heads, int64_t head_size, int64_t value_size,
                    double scale, bool aligned_at_end, int64_t before, int64_t after, bool with_lse, int64_t token_bytes,
                    int64_t page_bytes) {
  if (!memory.answers) return;
  memory.answers = false;
  Plan plan{{}, with_lse, token_bytes, page_bytes};
  plan.problem.sequences = sequences_from(sequences);
  plan.problem.heads = heads;
  plan.problem.kv_heads = kv_heads;
  plan.problem.head_size = head_size;
  plan.problem.value_size = value_size;
  plan.problem.scale = static_cast<float>(scale);
  plan.problem.aligned_at_end = aligned_at_end;
  plan.problem.before = before;
  plan.problem.after = after;
  if (memory.plans.size() >= kRemembered) memory.plans.clear();
  memory.plans.emplace(memory.asked, std::move(plan));
}

[[maybe_unused]] const bool direct_attention_added =
    add_direct_form("npu::npu_fused_infer_attention_score", &attend_as_planned) &&
    add_direct_form("npu::npu_fused_infer_attention_score.out", &attend_as_planned) &&
    add_direct_form("npu::npu_fused_infer_attention_score_v2", &attend_as_planned) &&
    add_direct_form("npu::npu_fused_infer_attention_score_v2.out", &attend_as_planned);

}  // namespace

AwaitPlan::~AwaitPlan() { memory.answers = false; }

int forget_attention_plans() {
  const auto plans = static_cast<int>(memory.plans.size());
  memory = Memory();
  return plans;
}

}  // namespace npu_emulator

TORCH_LIBRARY_FRAGMENT(npu_emulator, m) {
  m.def("plan_attention(int[] sequences, int heads, int kv_heads, int head_size, int value_size, float scale, "
        "bool aligned_at_end, int before, int after, bool with_lse, int token_bytes, int page_bytes) -> ()",
        &npu_emulator::plan_attention);
}

// For a change of settings while the process runs. Returns how many plans this thread had.
extern "C" int npu_emulator_forget_attention_plans() { return npu_emulator::forget_attention_plans(); }
