#include "core/profile.hpp"
#include "kernels/cuda/dropout_row.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/embedding.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

int64_t packs_of(int64_t channels, int64_t size) { return (channels + size - 1) / size; }

template <class T>
struct Gather {
  float* x;
  const T *table, *position_table;
  float scale;
  const int32_t *ids, *positions;
  RowDropout dropout;
  int64_t packs;

  __device__ void operator()(int64_t i) const {
    constexpr int64_t size = wide<T>;
    const int64_t row = i / packs, at = i % packs * size, channels = dropout.width;
    PackOf<size> sum = load_pack<size>(table + ids[row] * channels, at, channels), place{};
    if (position_table != nullptr) place = load_pack<size>(position_table + positions[row] * channels, at, channels);
    const PackOf<size> factors = dropout.scales<size>(row, at);
    for (int k = 0; k < size; ++k) sum.v[k] = fmaf(scale, sum.v[k], place.v[k]) * factors.v[k];
    store_pack(x + row * channels, at, channels, sum);
  }
};

template <class T>
struct AddRows {
  float* x;
  const T* table;
  int64_t first, rows;
  const int32_t* ids;
  float scale;
  int64_t channels, packs;

  __device__ void operator()(int64_t i) const {
    constexpr int64_t size = wide<T>;
    const int64_t at = i % packs * size, row = ids[i / packs] - first;
    if (row < 0 || row >= rows) return;
    float* to = x + i / packs * channels;
    const PackOf<size> added = load_pack<size>(table + row * channels, at, channels);
    PackOf<size> sum = load_pack<size>(to, at, channels);
    for (int k = 0; k < size; ++k) sum.v[k] = fmaf(scale, added.v[k], sum.v[k]);
    store_pack(to, at, channels, sum);
  }
};

/// Key and row in one integer, so that all are distinct and the order is unique.
using KeyedRow = uint64_t;
__device__ inline int32_t key_of(KeyedRow k) { return static_cast<int32_t>(k >> 32); }
__device__ inline int64_t row_of(KeyedRow k) { return static_cast<int64_t>(k & 0xFFFFFFFFu); }

/// Creates sorted runs of rows: a block counts, for each of its rows, the rows that precede it.
struct SortRuns {
  static constexpr int threads = 512;
  const int32_t* keys;
  int64_t rows;
  KeyedRow* sorted;

  __device__ void operator()() const {
    LLMTRAIN_SHARED(KeyedRow[threads], run);
    const int64_t first = int64_t{blockIdx.x} * threads, row = first + threadIdx.x;
    const int count = static_cast<int>(std::min<int64_t>(threads, rows - first));
    const KeyedRow mine =
        row < rows ? KeyedRow{static_cast<uint32_t>(keys[row])} << 32 | static_cast<uint64_t>(row) : 0;
    run[threadIdx.x] = mine;
    __syncthreads();
    if (row >= rows) return;
    int before = 0;
    for (int i = 0; i < count; ++i) before += run[i] < mine ? 1 : 0;
    sorted[first + before] = mine;
  }
};

/// Merges runs of `length` rows into runs of twice the length: a row's position is the number of rows before it in both
/// runs, found by bisection in the other one.
struct MergeRuns {
  const KeyedRow* from;
  KeyedRow* to;
  int64_t rows, length;

  __device__ void operator()(int64_t i) const {
    const KeyedRow mine = from[i];
    const int64_t run = i / length, other = (run ^ 1) * length;
    int64_t low = std::min(other, rows), high = std::min(other + length, rows);
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      from[middle] < mine ? low = middle + 1 : high = middle;
    }
    to[i - run % 2 * length + (low - std::min(other, rows))] = mine;
  }
};

/// Rows by (key, row), in scratch(): log2(rows / 512) + 1 short kernels without atomics.
const KeyedRow* sorted_rows(const int32_t* keys, int64_t rows, Stream& stream) {
  auto* from = static_cast<KeyedRow*>(scratch(2 * rows * static_cast<int64_t>(sizeof(KeyedRow))));
  KeyedRow* to = from + rows;
  launch({blocks_for(rows, SortRuns::threads)}, stream, SortRuns{keys, rows, from});
  for (int64_t length = SortRuns::threads; length < rows; length *= 2) {
    for_each(rows, stream, MergeRuns{from, to, rows, length});
    std::swap(from, to);
  }
  return from;
}

/// Adds the gradients of each key's rows, in order, to table row key; four columns per thread. Threads that are not at
/// a key's first row have no work.
template <bool drops>
struct ScatterKey {
  float* table;
  const float* dx;
  float scale;
  int32_t omitted;          // the key of a row that gets nothing
  int64_t first_key, keys;  // those that the table has
  const KeyedRow* sorted;
  int64_t rows;
  RowDropout dropout;
  int64_t packs;

  __device__ void operator()(int64_t i) const {
    const int64_t place = i / packs, at = i % packs * Pack::size, channels = dropout.width;
    const int32_t key = key_of(sorted[place]);
    if (key == omitted || (place > 0 && key_of(sorted[place - 1]) == key)) return;
    if (key < first_key || key >= first_key + keys) return;
    float* to = table + (key - first_key) * channels;
    Pack sum = load_pack(to, at, channels);
    constexpr int ahead = 8;  // sums depend on each other, loads do not
    bool more = true;
    for (int64_t first = place; more; first += ahead) {
      KeyedRow keyed[ahead];
      Pack d[ahead];
      LLMTRAIN_UNROLL
      for (int j = 0; j < ahead; ++j) {
        keyed[j] = sorted[std::min(first + j, rows - 1)];
        d[j] = load_pack(dx + row_of(keyed[j]) * channels, at, channels);
      }
      LLMTRAIN_UNROLL
      for (int j = 0; j < ahead; ++j) {
        more = more && first + j < rows && key_of(keyed[j]) == key;
        if (!more) continue;
        Pack factors{};
        if constexpr (drops) factors = dropout.scales<Pack::size>(row_of(keyed[j]), at);
        for (int k = 0; k < Pack::size; ++k) {
          sum.v[k] = fmaf(d[j].v[k], drops ? scale * factors.v[k] : scale, sum.v[k]);
        }
      }
    }
    store_pack(to, at, channels, sum);
  }
};

template <bool drops>
void scatter(const Tensor& table, const Tensor& keys, const Tensor& dx, float scale, int32_t omitted, int64_t first,
             const RowDropout& dropout, Stream& stream) {
  if (table.empty()) return;
  const int64_t rows = dx.dim(0), packs = packs_of(dropout.width, Pack::size);
  const KeyedRow* sorted = sorted_rows(keys.as<int32_t>(), rows, stream);
  for_each(rows * packs, stream,
           ScatterKey<drops>{table.as<float>(), dx.as<float>(), scale, omitted, first, table.dim(0), sorted, rows,
                             dropout, packs});
}

}  // namespace

void embedding_forward(const Tensor& x, const Tensor& table, const Tensor& position_table, float scale,
                       const Batch& batch, const Dropout& dropout, Stream& stream) {
  const ProfileSpan span("embedding_forward", [&] { return traffic({&x, &x}); });
  const int64_t rows = x.dim(0), channels = x.dim(1);
  LLMTRAIN_CHECK(table.dim(1) == channels && batch.tokens == rows,
                 "the table must have the width of the output, and the batch one token per row");
  dispatch(table, [&]<class T>(T* tokens) {
    const int64_t packs = packs_of(channels, wide<T>);
    for_each(
        rows * packs, stream,
        Gather<T>{x.as<float>(), tokens, static_cast<const T*>(position_table.data), scale, batch.ids.as<int32_t>(),
                  batch.positions.as<int32_t>(), RowDropout(dropout, batch, channels), packs});
  });
}

void add_table_rows(const Tensor& x, const Tensor& table, int64_t first, const Tensor& ids, float scale,
                    Stream& stream) {
  const ProfileSpan span("embedding_forward", [&] { return traffic({&x, &x}); });
  check_table_rows(x, table, ids);
  dispatch(table, [&]<class T>(T* from) {
    const int64_t channels = x.dim(1), packs = packs_of(channels, wide<T>);
    for_each(x.dim(0) * packs, stream,
             AddRows<T>{x.as<float>(), from, first, table.dim(0), ids.as<int32_t>(), scale, channels, packs});
  });
}

void embedding_backward(const Tensor& dtable, const Tensor& dposition, const Tensor& dx, float scale,
                        const Batch& batch, const Dropout& dropout, Stream& stream, int32_t padding, int64_t first) {
  const ProfileSpan span("embedding_backward", [&] { return traffic({&dx, &dx, &dx}); });
  const RowDropout rows(dropout, batch, dx.dim(1));
  const auto add = dropout.active() ? scatter<true> : scatter<false>;
  add(dtable, batch.ids, dx, scale, padding, first, rows, stream);
  add(dposition, batch.positions, dx, 1.0f, -1, 0, rows, stream);
}

}  // namespace llmtrain
