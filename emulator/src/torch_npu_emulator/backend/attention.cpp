#include "attention.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cmath>

#include "attention_tile.h"

namespace npu_emulator {
namespace {

// A share of the keys that one thread takes at a time is not made smaller than this.
constexpr int64_t kMinShare = 2 * kChunk;

// Rows of a tile from which on its arithmetic takes longer than memory does.
constexpr int64_t kFetchingRows = 32;

// Bytes that stay in a core's second-level cache.
constexpr int64_t kStays = 1 << 20;

// Multiplications below which a second thread costs more than it does.
constexpr int64_t kSmallWork = 1 << 20;

// The rows of some queries of one sequence and one key-value head, against keys [key_begin, key_end).
struct Task {
  int64_t sequence, kv_head, query_begin, queries, key_begin, key_end;
  int64_t partial = -1;  // where the result waits to be merged, in rows; -1: it is final
};

// Tasks that share rows and have split the keys among themselves: every kv_heads'th of [first_task, end).
struct Merge {
  size_t first_task, end;
};

template <typename T>
class Attention {
 public:
  Attention(const Problem& problem, const T* query, const T* key, const T* value, T* out, float* lse)
      : p_(problem), query_(query), key_(key), value_(value), out_(out), lse_(lse), group_(p_.heads / p_.kv_heads) {}

  void run() {
    plan();
    std::atomic<size_t> next{0};
    int64_t max_rows = 0, max_keys = 0, work = 0;
    for (const auto& task : tasks_) {
      max_keys = std::max(max_keys, task.key_end - task.key_begin);
      max_rows = std::max(max_rows, task.queries * group_);
      work += (task.key_end - task.key_begin) * task.queries * group_ * (p_.head_size + p_.value_size);
    }
    const auto threads = work < kSmallWork ? std::min<size_t>(1, tasks_.size())
                                           : std::min<size_t>(at::get_num_threads(), tasks_.size());
    // The heads of a key lie side by side: what one of them reads brings the others close, for as long as it stays.
    const auto heads = static_cast<size_t>(p_.kv_heads);
    const int64_t bytes = max_keys * p_.kv_heads * (p_.head_size + p_.value_size) * static_cast<int64_t>(sizeof(T));
    const size_t unit = bytes <= kStays && threads > 0 && tasks_.size() / heads % threads == 0 ? heads : 1;
    at::parallel_for(0, static_cast<int64_t>(threads), 1, [&](int64_t begin, int64_t end) {
      Tile<T> tile(max_rows, p_.head_size, p_.value_size);
      for (int64_t thread = begin; thread < end; ++thread) {
        for (size_t i = next.fetch_add(unit); i < tasks_.size(); i = next.fetch_add(unit)) {
          for (size_t j = i; j < std::min(i + unit, tasks_.size()); ++j) compute(tasks_[j], tile);
        }
      }
      tile.release();
    });
    if (!merges_.empty()) {
      at::parallel_for(0, static_cast<int64_t>(merges_.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) merge(merges_[i]);
      });
    }
  }

 private:
  // Cuts the queries into tiles, and the keys of few tiles into shares, so that all threads have work.
  void plan() {
    const int64_t tile_queries = std::max<int64_t>(1, kMaxRows / group_);
    int64_t tiles = 0;
    for (const auto& s : p_.sequences) tiles += p_.kv_heads * ((s.query_length + tile_queries - 1) / tile_queries);
    const int64_t wanted = shares_of_a_tile(tiles, at::get_num_threads());
    int64_t partial_rows = 0;
    for (size_t i = 0; i < p_.sequences.size(); ++i) {
      const auto& s = p_.sequences[i];
      for (int64_t q = 0; q < s.query_length; q += tile_queries) {
        Task task{static_cast<int64_t>(i), 0, q, std::min(tile_queries, s.query_length - q), 0, s.kv_length};
        clip_keys(s, task);
        const int64_t keys = task.key_end - task.key_begin;
        const int64_t shares = std::clamp<int64_t>(keys / kMinShare, 1, wanted);
        const int64_t share = shares == 1 ? keys : (keys / shares + kChunk - 1) / kChunk * kChunk;
        const size_t first = tasks_.size();
        int64_t begin = task.key_begin;
        do {  // a tile without keys is a task, too: its rows are written as empty
          const int64_t end = std::min(begin + share, task.key_end);
          for (int64_t head = 0; head < p_.kv_heads; ++head) {
            tasks_.push_back({task.sequence, head, q, task.queries, begin, end});
            if (shares == 1) continue;
            tasks_.back().partial = partial_rows;
            partial_rows += task.queries * group_;
          }
          begin = end;
        } while (begin < task.key_end);
        if (shares == 1) continue;
        for (int64_t head = 0; head < p_.kv_heads; ++head) merges_.push_back({first + head, tasks_.size()});
      }
    }
    partial_sums_.resize(partial_rows * p_.value_size);
    partial_maxima_.resize(partial_rows);
    partial_denominators_.resize(partial_rows);
  }

  // At least four pieces of work a thread, and the same number for each of them.
  static int64_t shares_of_a_tile(int64_t tiles, int64_t threads) {
    if (tiles == 0 || threads == 1 || tiles >= 4 * threads) return 1;
    int64_t shares = (4 * threads + tiles - 1) / tiles;
    while (tiles * shares % threads != 0) ++shares;
    return shares;
  }

  int64_t offset(const Sequence& s) const { return p_.aligned_at_end ? s.kv_length - s.query_length : 0; }
  int64_t first_key(const Sequence& s, int64_t query) const {
    return p_.before >= kUnlimited ? 0 : std::clamp<int64_t>(query + offset(s) - p_.before, 0, s.kv_length);
  }
  int64_t last_key(const Sequence& s, int64_t query) const {  // one behind the last
    return p_.after >= kUnlimited ? s.kv_length : std::clamp<int64_t>(query + offset(s) + p_.after + 1, 0, s.kv_length);
  }
  void clip_keys(const Sequence& s, Task& task) const {
    task.key_begin = first_key(s, task.query_begin);
    task.key_end = std::max(task.key_begin, last_key(s, task.query_begin + task.queries - 1));
  }

  // Calls visit(pointer to the key's row in either tensor, first key, count) for runs of keys that lie in one page.
  template <typename Visit>
  void for_runs(const Sequence& s, int64_t begin, int64_t end, const Strides& strides, const T* base, int64_t head,
                const Visit& visit) const {
    const T* at_head = base + head * strides.head;
    if (p_.block_table == nullptr) {
      visit(at_head + s.kv_batch * strides.batch + (s.kv_begin + begin) * strides.row, begin, end - begin);
      return;
    }
    const int32_t* table = p_.block_table + s.kv_batch * p_.block_table_stride;  // ids were checked before
    for (int64_t key = begin; key < end;) {
      const int64_t row = key % p_.page, count = std::min(end - key, p_.page - row);
      visit(at_head + table[key / p_.page] * strides.batch + row * strides.row, key, count);
      key += count;
    }
  }

  // Where the rows of a chunk's keys or values lie.
  struct Rows {
    std::array<const T*, kChunk> at;
    int64_t count = 0;
  };
  void locate(const Sequence& s, int64_t begin, int64_t end, const Strides& strides, const T* base, int64_t head,
              Rows& rows) const {
    rows.count = end - begin;
    for_runs(s, begin, end, strides, base, head, [&](const T* first, int64_t key, int64_t count) {
      for (int64_t i = 0; i < count; ++i) rows.at[key - begin + i] = first + i * strides.row;
    });
  }
  static void fetch(const Rows& rows, int64_t begin, int64_t end, int64_t channels) {
    for (int64_t i = begin; i < std::min(end, rows.count); ++i) {
      const auto* bytes = reinterpret_cast<const char*>(rows.at[i]);
      for (int64_t line = 0; line < channels * static_cast<int64_t>(sizeof(T)); line += 64) {
        __builtin_prefetch(bytes + line, 0, 2);
        asm volatile("");  // GCC takes a function that only fetches for one without effect, and drops its calls
      }
    }
  }

  void compute(const Task& task, Tile<T>& tile) {
    const auto& s = p_.sequences[task.sequence];
    const int64_t rows = task.queries * group_;
    for (int64_t i = 0; i < task.queries; ++i) {
      for (int64_t g = 0; g < group_; ++g) {
        const T* source = query_ + s.query_batch * p_.query.batch + (s.query_begin + task.query_begin + i) * p_.query.row +
                          (task.kv_head * group_ + g) * p_.query.head;
        std::copy_n(source, p_.head_size, tile.queries + (i * group_ + g) * p_.head_size);
      }
    }
    tile.start(rows);
    // Values of this chunk and keys of the next one are fetched while weights are computed, a share for each row. Few
    // rows are done before memory could answer.
    const bool fetches = rows >= kFetchingRows;
    const int64_t share = (kChunk + rows - 1) / std::max<int64_t>(1, rows);
    Rows values, next_keys;
    for (int64_t begin = task.key_begin; begin < task.key_end; begin += kChunk) {
      const int64_t end = std::min(begin + kChunk, task.key_end);
      for_runs(s, begin, end, p_.key, key_, task.kv_head, [&](const T* key, int64_t first, int64_t count) {
        tile.multiply_keys(key, p_.key.row, first - begin, count);
      });
      tile.finish_keys(end - begin);
      hide(s, task, tile, begin, end);
      if (fetches) {
        const int64_t next = std::min(end + kChunk, task.key_end);
        locate(s, begin, end, p_.value, value_, task.kv_head, values);
        locate(s, end, next, p_.key, key_, task.kv_head, next_keys);
      }
      tile.soften(end - begin, p_.scale, [&](int64_t row) {
        if (!fetches) return;
        fetch(values, row * share, (row + 1) * share, p_.value_size);
        fetch(next_keys, row * share, (row + 1) * share, p_.head_size);
      });
      for_runs(s, begin, end, p_.value, value_, task.kv_head, [&](const T* value, int64_t first, int64_t count) {
        tile.multiply_values(value, p_.value.row, first - begin, count);
      });
      tile.finish_values(end - begin);
    }
    if (task.partial < 0) {
      for (int64_t row = 0; row < rows; ++row) {
        write(task, row, tile.sums + row * p_.value_size, tile.maxima[row] * p_.scale, tile.denominators[row]);
      }
      return;
    }
    std::copy_n(tile.sums, rows * p_.value_size, partial_sums_.data() + task.partial * p_.value_size);
    for (int64_t row = 0; row < rows; ++row) partial_maxima_[task.partial + row] = tile.maxima[row] * p_.scale;
    std::copy_n(tile.denominators, rows, partial_denominators_.data() + task.partial);
  }

  // Logits of keys [begin, end) that a query must not see become -inf.
  void hide(const Sequence& s, const Task& task, Tile<T>& tile, int64_t begin, int64_t end) const {
    if (p_.before >= kUnlimited && p_.after >= kUnlimited && p_.mask == nullptr) return;
    for (int64_t i = 0; i < task.queries; ++i) {
      const int64_t query = task.query_begin + i;
      const int64_t first = std::clamp(first_key(s, query), begin, end) - begin;
      const int64_t last = std::clamp(last_key(s, query), begin, end) - begin;
      const bool* mask = p_.mask == nullptr
                             ? nullptr
                             : p_.mask + s.query_batch * p_.mask_batch + query * p_.mask_row + begin;
      if (first == 0 && last == end - begin && mask == nullptr) continue;
      for (int64_t g = 0; g < group_; ++g) {
        float* row = tile.logits + (i * group_ + g) * kChunk;
        std::fill(row, row + first, kMinusInfinity);
        std::fill(row + std::max(first, last), row + (end - begin), kMinusInfinity);
        for (int64_t n = first; mask != nullptr && n < last; ++n) {
          if (mask[n]) row[n] = kMinusInfinity;
        }
      }
    }
  }

  void merge(const Merge& group) {
    const Task& whole = tasks_[group.first_task];
    std::vector<float> sums(p_.value_size);
    for (int64_t row = 0; row < whole.queries * group_; ++row) {
      float maximum = kMinusInfinity, denominator = 0.0f;
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (size_t i = group.first_task; i < group.end; i += p_.kv_heads) {
        maximum = std::max(maximum, partial_maxima_[tasks_[i].partial + row]);
      }
      for (size_t i = group.first_task; i < group.end; i += p_.kv_heads) {
        const int64_t at = tasks_[i].partial + row;
        const float weight = partial_maxima_[at] == maximum ? 1.0f : exp_nonpositive(partial_maxima_[at] - maximum);
        denominator += weight * partial_denominators_[at];
        const float* part = partial_sums_.data() + at * p_.value_size;
        for (int64_t d = 0; d < p_.value_size; ++d) sums[d] += weight * part[d];
      }
      write(whole, row, sums.data(), maximum, denominator);
    }
  }

  void write(const Task& task, int64_t row, float* sums, float maximum, float denominator) const {
    const auto& s = p_.sequences[task.sequence];
    const int64_t head = task.kv_head * group_ + row % group_;
    const int64_t at = s.query_begin + task.query_begin + row / group_;
    T* out = out_ + s.query_batch * p_.out.batch + at * p_.out.row + head * p_.out.head;
    float keep = 1.0f;
    if (p_.sink != nullptr && denominator > 0.0f) {
      const float top = std::max(maximum, p_.sink[head]);
      keep = exp_nonpositive(maximum - top);
      denominator = denominator * keep + exp_nonpositive(p_.sink[head] - top);
      maximum = top;
    }
    const bool seen = denominator != 0.0f;  // what is not a number was seen, and shows
    const float factor = seen ? keep / denominator : 0.0f;
    for (int64_t d = 0; d < p_.value_size; ++d) out[d] = static_cast<T>(seen ? sums[d] * factor : 0.0f);
    if (lse_ != nullptr) {
      lse_[s.query_batch * p_.lse.batch + at * p_.lse.row + head * p_.lse.head] =
          seen ? maximum + std::log(denominator) : -kMinusInfinity;
    }
  }

  const Problem& p_;
  const T *query_, *key_, *value_;
  T* out_;
  float* lse_;
  int64_t group_;
  std::vector<Task> tasks_;
  std::vector<Merge> merges_;
  std::vector<float> partial_sums_, partial_maxima_, partial_denominators_;
};

Strides strides_of(const at::Tensor& tensor, const char* name, bool contiguous_channels = true) {
  TORCH_CHECK(!contiguous_channels || tensor.dim() == 4, name, " must be [batch, row, head, channel]");
  TORCH_CHECK(!contiguous_channels || tensor.size(3) == 1 || tensor.stride(3) == 1, name, "'s channels must be contiguous");
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// The operator that Python calls. Its arguments were checked there; here only what would read foreign memory is.
void attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& block_table, const std::optional<at::Tensor>& mask,
               const std::optional<at::Tensor>& sink, at::Tensor& out, std::optional<at::Tensor> lse,
               at::IntArrayRef sequences, double scale, bool aligned_at_end, int64_t before, int64_t after) {
  Problem p;
  p.query = strides_of(query, "query");
  p.key = strides_of(key, "key");
  p.value = strides_of(value, "value");
  p.out = strides_of(out, "out");
  p.lse = lse ? strides_of(*lse, "lse", false) : Strides{0, 0, 0};
  p.heads = query.size(2);
  p.kv_heads = key.size(2);
  p.head_size = query.size(3);
  p.value_size = value.size(3);
  p.scale = static_cast<float>(scale);
  p.aligned_at_end = aligned_at_end;
  p.before = before;
  p.after = after;
  TORCH_CHECK(p.heads % p.kv_heads == 0 && key.size(3) == p.head_size &&
                  value.size(2) == p.kv_heads && p.heads / p.kv_heads <= kMaxRows,
              "npu_emulator::attention: shapes do not fit");
  p.sequences = sequences_from(sequences);
  if (block_table) {
    TORCH_CHECK(block_table->scalar_type() == at::kInt && block_table->dim() == 2 &&
                    (block_table->size(1) <= 1 || block_table->stride(1) == 1),
                "npu_emulator::attention: block_table");
    p.block_table = block_table->const_data_ptr<int32_t>();
    p.block_table_stride = block_table->stride(0);
    p.page = key.size(1);
    check_blocks(p, key.size(0));
  }
  if (mask) {
    p.mask = mask->const_data_ptr<bool>();
    p.mask_batch = mask->size(0) == 1 ? 0 : mask->stride(0);
    p.mask_row = mask->stride(1);
  }
  if (sink) p.sink = sink->const_data_ptr<float>();
  attend_tensors(p, query, key, value, out, lse ? lse->mutable_data_ptr<float>() : nullptr);
}

}  // namespace

template <typename T>
void attend(const Problem& problem, const T* query, const T* key, const T* value, T* out, float* lse) {
  Attention<T>(problem, query, key, value, out, lse).run();
}

std::vector<Sequence> sequences_from(at::IntArrayRef numbers) {
  TORCH_CHECK(numbers.size() % 6 == 0, "npu_emulator: a sequence is six numbers");
  std::vector<Sequence> result;
  for (size_t i = 0; i < numbers.size(); i += 6) {
    result.push_back({numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3], numbers[i + 4], numbers[i + 5]});
  }
  return result;
}

void check_blocks(const Problem& p, int64_t blocks) {
  for (size_t i = 0; i < p.sequences.size(); ++i) {
    const auto& s = p.sequences[i];
    if (s.query_length == 0) continue;
    const int32_t* row = p.block_table + s.kv_batch * p.block_table_stride;
    for (int64_t used = 0; used * p.page < s.kv_length; ++used) {
      TORCH_CHECK(row[used] >= 0 && row[used] < blocks, "block_table: sequence ", i, " names block ", row[used],
                  " as its number ", used, ", the cache has ", blocks, " blocks");
    }
  }
}

void attend_tensors(const Problem& p, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const at::Tensor& out, float* lse) {
  AT_DISPATCH_SWITCH(
      query.scalar_type(), "npu_emulator::attention",
      AT_DISPATCH_CASE(at::kFloat, [&] {
        attend(p, query.const_data_ptr<float>(), key.const_data_ptr<float>(), value.const_data_ptr<float>(),
               out.mutable_data_ptr<float>(), lse);
      }) AT_DISPATCH_CASE(at::kBFloat16, [&] {
        attend(p, query.const_data_ptr<at::BFloat16>(), key.const_data_ptr<at::BFloat16>(),
               value.const_data_ptr<at::BFloat16>(), out.mutable_data_ptr<at::BFloat16>(), lse);
      }) AT_DISPATCH_CASE(at::kHalf, [&] {
        attend(p, query.const_data_ptr<at::Half>(), key.const_data_ptr<at::Half>(), value.const_data_ptr<at::Half>(),
               out.mutable_data_ptr<at::Half>(), lse);
      }));
}

TORCH_LIBRARY_FRAGMENT(npu_emulator, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? block_table, Tensor? mask, Tensor? sink, "
      "Tensor(a!) out, Tensor(b!)? lse, int[] sequences, float scale, bool aligned_at_end, int before, int after) -> ()");
}
TORCH_LIBRARY_IMPL(npu_emulator, CPU, m) { m.impl("attention", &attention); }

}  // namespace npu_emulator
