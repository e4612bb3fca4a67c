// Attention to cached keys and values in the order of attention_forward: keys in the same blocks, counted from the
// start of the sequence, by products that sum each element alike, whatever the number of rows and columns. Whole blocks
// are read in place where they have the type of operands.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "core/profile.hpp"
#include "kernels/attention_checks.hpp"
#include "kernels/host/attention/attention_run.hpp"
#include "kernels/host/attention/attention_short_run.hpp"
#include "kernels/host/attention/attention_softmax.hpp"
#include "kernels/host/buffer.hpp"
#include "kernels/host/product/gemm_plan.hpp"

namespace llmtrain {

namespace {

using namespace host;

/// Index of a row's token in the cache, counted over all its sequences. cache_keys_values, which is called first, has
/// checked it. (Nothing may throw inside a parallel loop.)
int64_t place_of(const Tensor& cache, const Batch& batch, int64_t row) {
  return batch.sequence_ids.as<int64_t>()[row] * cache.dim(1) + batch.positions.as<int32_t>()[row];
}

constexpr int block = attention_block;
constexpr int tile_columns = 16;    ///< queries whose softmax is computed at once
constexpr int panel_channels = 64;  ///< of values that a product reads

/// Queries that fill at most one tile: of some query heads of one token, or of consecutive tokens of a sequence, inside
/// one block, and query heads that read one key head. Column r * heads + h of the tile is head first_head + h of token
/// r.
struct CachedItem {
  int64_t row;       ///< row of the first token in the batch
  int64_t sequence;  ///< place of the sequence's first token in the cache
  int position;      ///< of the first token
  int tokens;
  int first_head;
  int heads;

  int query_block() const { return position / block; }
  int last() const { return position + tokens - 1; }
  int columns() const { return tokens * heads; }
  /// Columns that read one key head, of which `group` query heads read each.
  int columns_of_key_head(int group) const { return tokens == 1 ? std::min(heads, group) : columns(); }
};

/// The visible part of a tile of keys from block `key_block` on.
class CachedMask {
 public:
  CachedMask(const CachedItem& item, int key_block, int64_t window)
      : item_(item), distance_(item.position - int64_t{key_block} * block), window_(window) {}
  bool full() const { return distance_ >= block && (window_ == 0 || distance_ + item_.tokens <= window_); }
  int low(int key) const { return columns(key - distance_); }
  int high(int key) const { return window_ == 0 ? tile_columns : columns(key - distance_ + window_); }

 private:
  int columns(int64_t tokens) const {
    return static_cast<int>(std::clamp<int64_t>(tokens, 0, item_.tokens)) * item_.heads;
  }
  const CachedItem& item_;
  int64_t distance_;  ///< first query - first key
  int64_t window_;
};

template <class P>
struct CachedBuffers {
  P* rows;           ///< [64, D] staging
  P* value;          ///< B operand [64, 64] of some channels
  P* query;          ///< B operand [D, 16], and a vector that kernels may read
  float* scores;     ///< [keys, queries]
  float* turned;     ///< [queries, keys]
  P* probabilities;  ///< A operand [queries, keys]
  float* output;     ///< [queries, D]
  OnlineSoftmax<tile_columns>* softmax;
  void* scratch;
  mutable const TileKernel* configured = nullptr;

  CachedBuffers(Carver& carver, int head_dim) {
    const int64_t padded = padded_head_dim(head_dim);
    rows = carver.take<P>(block * padded);
    value = carver.take<P>(block * panel_channels);
    query = carver.take<P>(tile_columns * (padded + 1));
    scores = carver.take<float>(block * tile_columns);
    turned = carver.take<float>(block * tile_columns);
    probabilities = carver.take<P>(block * tile_columns);
    output = carver.take<float>(tile_columns * padded);
    softmax = carver.take<OnlineSoftmax<tile_columns>>(1);
    scratch = carver.take<char>(BlockProduct::scratch_bytes);
  }

  void multiply(const TileKernel& kernel, const void* a, const void* b, float* c) const {
    if (&kernel != configured) kernel.configure_thread();
    configured = &kernel;
    LLMTRAIN_CHECK(kernel.run(a, b, c, scratch), "a oneDNN micro-kernel failed");
  }
};

/// Kernels of the products of one key head by its number of columns. They belong to the calling thread.
class CachedKernels {
 public:
  CachedKernels(const std::vector<CachedItem>& items, int group, DType dtype, int padded, int64_t stride)
      : micro_(dtype == DType::bf16 || product_kernels(DType::f32, block).micro) {
    for (const CachedItem& item : items) {
      const int n = item.columns_of_key_head(group);
      OfColumns& kernels = of_[static_cast<size_t>(n)];
      if (kernels.scores[0] != nullptr) continue;
      for (const bool in_place : {false, true}) {
        const int64_t row = in_place ? stride : padded;
        kernels.scores[in_place ? 1 : 0] = kernel({block, n, padded, row, tile_columns, tile_columns, dtype, false});
        for (int c = 0; c < padded; c += panel_channels) {
          const int width = std::min(panel_channels, padded - c);
          const int64_t ldb = dtype == DType::bf16 ? width : row;
          for (const bool adds : {false, true}) {
            kernels.values[in_place ? 1 : 0][width < panel_channels ? 1 : 0][adds ? 1 : 0] =
                kernel({n, width, block, block, ldb, padded, dtype, adds});
          }
        }
      }
    }
  }

  const TileKernel& scores(int columns, bool in_place) const { return *of(columns).scores[in_place ? 1 : 0]; }
  const TileKernel& values(int columns, bool in_place, int width, bool adds) const {
    return *of(columns).values[in_place ? 1 : 0][width < panel_channels ? 1 : 0][adds ? 1 : 0];
  }

 private:
  struct OfColumns {
    std::array<const TileKernel*, 2> scores{};
    const TileKernel* values[2][2][2] = {};  ///< in place; fewer channels than a whole panel; adds
  };
  const OfColumns& of(int columns) const { return of_[static_cast<size_t>(columns)]; }
  const TileKernel* kernel(const TileShape& shape) const {
    const TileKernel* made = kernel_of(shape, micro_);
    LLMTRAIN_CHECK(made->scratch_bytes() <= BlockProduct::scratch_bytes,
                   "a micro-kernel needs more scratch memory than is planned");
    return made;
  }

  bool micro_;
  std::array<OfColumns, tile_columns + 1> of_{};
};

/// S: storage, P: operands of products.
template <class S, class P>
class CachedPass {
 public:
  CachedPass(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Tensor& cache, const AttentionShape& shape,
             const std::vector<CachedItem>& items)
      : layout_(shape),
        window_{shape.window},
        scale_(shape),
        short_segments_(short_segments<P>(shape, Dropout{})),
        padded_(padded_head_dim(layout_.head_dim)),
        out_(out.as<S>()),
        lse_(lse.as<float>()),
        tokens_(qkv.dim(0)),
        qkv_(qkv.as<S>()),
        cache_(cache.as<S>()),
        cache_rows_(cache.dim(0) * cache.dim(1)),
        stride_(cache.dim(2)),
        kernels_(items, layout_.group(), dtype_of<P>, padded_, stride_) {}

  int64_t bytes() const {
    Carver tiles, short_path;
    CachedBuffers<P>(tiles, layout_.head_dim);
    short_forward(short_path, layout_.head_dim);
    return std::max(tiles.used(), short_path.used());
  }

  void run(const CachedItem& item, void* memory) const {
    Carver carver(memory);
    if (short_segments_ && item.query_block() == 0) {
      return run_short(item, short_forward(carver, layout_.head_dim));
    }
    const CachedBuffers<P> f(carver, layout_.head_dim);
    load_queries(f, item);
    const int first = window_.first_key_block(item.query_block()), n = item.columns_of_key_head(layout_.group());
    for (int j = first; j <= item.query_block(); ++j) {
      for (int c = 0; c < item.columns(); c += n) add_scores(f, item, j, c, n);
      const bool corrected = f.softmax->add_tile(f.scores, scale_, CachedMask(item, j, window_.window));
      transpose_words(words(f.turned), words(f.scores), block, tile_columns);
      for (int i = 0; i < tile_columns * block; i += 8) store8(f.probabilities + i, load8(f.turned + i));
      for (int c = 0; c < item.columns(); ++c) {
        if (j > first && corrected) scale_row(f.output + c * padded_, f.softmax->correction[c]);
      }
      for (int c = 0; c < item.columns(); c += n) add_values(f, item, j, c, n, j > first);
    }
    for (int r = 0; r < item.tokens; ++r) {
      for (int h = 0; h < item.heads; ++h) {
        const int c = r * item.heads + h;
        store_rows(output(item, r, h), f.output + c * padded_, 1.0f / f.softmax->sum[c], 1);
        store_log(item, r, h, f.softmax->maximum[c], f.softmax->sum[c]);
      }
    }
  }

 private:
  /// Rows of the item's heads, of one token.
  HeadRows<const S> query(const CachedItem& item, int token) const {
    return {layout_.query<const S>(qkv_, item.first_head, item.row + token).data, layout_.head_dim, layout_.head_dim};
  }
  HeadRows<S> output(const CachedItem& item, int token, int head) const {
    return {layout_.output(out_, item.first_head + head, item.row + token).data, layout_.head_dim, layout_.head_dim};
  }
  /// Rows of the key head of a column, from key block j on.
  HeadRows<const S> key(const CachedItem& item, int j, int column) const {
    const int64_t kv_head = (item.first_head + column % item.heads) / layout_.group();
    return {cache_ + (item.sequence + int64_t{j} * block) * stride_ + kv_head * layout_.head_dim, stride_,
            layout_.head_dim};
  }
  HeadRows<const S> value(const CachedItem& item, int j, int column) const {
    HeadRows<const S> rows = key(item, j, column);
    rows.data += int64_t{layout_.kv_heads} * layout_.head_dim;
    return rows;
  }
  static int keys(const CachedItem& item, int j) { return std::min(block, item.last() + 1 - j * block); }
  /// Rows in the cache can be operands.
  bool same_layout() const { return std::is_same_v<S, P> && padded_ == layout_.head_dim; }

  /// Returns the rows of a block: in the cache, or copied to f.rows with zeros beyond `keys`.
  const P* operand(const CachedBuffers<P>& f, const HeadRows<const S>& rows, int keys, bool in_place) const {
    if constexpr (std::is_same_v<S, P>) {
      if (in_place) return rows.data;
    }
    load_rows(f.rows, rows, keys);
    return f.rows;
  }

  /// Scores of columns [column, column + n) with the keys of block j. The mask hides those of other rows of the
  /// cache afterwards.
  void add_scores(const CachedBuffers<P>& f, const CachedItem& item, int j, int column, int n) const {
    constexpr int unit = std::is_same_v<P, bf16> ? 2 : 1;  // bf16 values lie in pairs of rows
    const bool in_place = same_layout() && item.sequence + int64_t{j + 1} * block <= cache_rows_;
    const P* rows = operand(f, key(item, j, column), keys(item, j), in_place);
    f.multiply(kernels_.scores(n, in_place), rows, f.query + column * unit, f.scores + column);
  }

  /// Adds the values of block j, weighted by the probabilities of columns [column, column + n).
  void add_values(const CachedBuffers<P>& f, const CachedItem& item, int j, int column, int n, bool adds) const {
    constexpr bool packs = std::is_same_v<P, bf16>;
    const int count = keys(item, j);
    const bool in_place = same_layout() && (packs || count == block);
    const P* rows = operand(f, value(item, j, column), count, in_place);
    for (int c = 0; c < padded_; c += panel_channels) {
      const int width = std::min(panel_channels, padded_ - c);
      const P* panel = rows + c;
      if constexpr (packs) {
        pack_row_pairs(f.value, panel, in_place ? stride_ : padded_, count, width);
        panel = f.value;
      }
      f.multiply(kernels_.values(n, in_place, width, adds), f.probabilities + column * block, panel,
                 f.output + column * padded_ + c);
    }
  }

  void scale_row(float* row, float factor) const {
    for (int d = 0; d < padded_; ++d) row[d] *= factor;
  }

  void load_queries(const CachedBuffers<P>& f, const CachedItem& item) const {
    std::fill(f.rows, f.rows + tile_columns * padded_, P(0.0f));
    for (int r = 0; r < item.tokens; ++r) copy_rows(f.rows + r * item.heads * padded_, query(item, r), item.heads);
    pack_channels_inner(f.query, f.rows, padded_, tile_columns);
    std::fill(f.scores, f.scores + block * tile_columns, 0.0f);  // of columns without a query
    f.softmax->reset();
  }

  void run_short(const CachedItem& item, ShortForward b) const {
    b.scale = scale_.powers;
    b.first = item.position / short_group * short_group;
    b.rows = (item.last() / short_group + 1) * short_group;
    for (int h = 0; h < item.heads; ++h) {
      if (h == 0 || (item.first_head + h) % layout_.group() == 0) {
        load_rows(b.key, key(item, 0, h), item.last() + 1);
        transpose_words(words(b.key_transposed), words(b.key), block, padded_);
        load_rows(b.value, value(item, 0, h), item.last() + 1);
      }
      std::fill(b.query + b.first * padded_, b.query + b.rows * padded_, 0.0f);
      for (int r = 0; r < item.tokens; ++r) {
        HeadRows<const S> own = query(item, r);
        own.data += h * layout_.head_dim;
        copy_rows(b.query + (item.position + r) * padded_, own, 1);
      }
      short_attention(b);
      store_rows(layout_.output(out_, item.first_head + h, item.row), b.output + item.position * padded_, 1.0f,
                 item.tokens);
      for (int r = 0; r < item.tokens; ++r)
        store_log(item, r, h, b.maximum[item.position + r], b.sum[item.position + r]);
    }
  }

  /// Stores log(sum(exp(score))), of a maximum and a sum in powers of two.
  void store_log(const CachedItem& item, int token, int head, float maximum, float sum) const {
    lse_[(item.first_head + head) * tokens_ + item.row + token] =
        (maximum + std::log2(sum)) * std::numbers::ln2_v<float>;
  }

  HeadLayout layout_;
  CausalWindow window_;
  ScoreScale scale_;
  bool short_segments_;
  int padded_;
  S* out_;
  float* lse_;
  int64_t tokens_;
  const S* qkv_;
  const S* cache_;
  int64_t cache_rows_;
  int64_t stride_;
  CachedKernels kernels_;
};

std::vector<CachedItem> cached_items(const Tensor& cache, const Batch& batch, const AttentionShape& shape) {
  const int32_t* positions = batch.positions.as<int32_t>();
  const auto group = static_cast<int>(shape.heads / shape.kv_heads);
  const int most_heads = std::min(group, tile_columns), most_tokens = tile_columns / most_heads;
  // Heads of one token that fill a tile, whole groups of them.
  const int heads_of_token = group >= tile_columns ? most_heads : tile_columns / group * group;
  std::vector<CachedItem> items;
  int tokens = 0;
  for (int64_t row = 0; row < batch.tokens; row += tokens) {
    const int position = positions[row];
    const int room = std::min(most_tokens, block - position % block);
    const auto follows = [&](int64_t next) {
      return next < batch.tokens && place_of(cache, batch, next) == place_of(cache, batch, row) + (next - row) &&
             positions[next] == position + (next - row);
    };
    for (tokens = 1; tokens < room && follows(row + tokens);) ++tokens;
    const int64_t sequence = place_of(cache, batch, row) - position;
    for (int head = 0, heads = 0; head < shape.heads; head += heads) {
      const bool several = tokens == 1 && group <= tile_columns;
      heads = several ? std::min<int>(heads_of_token, static_cast<int>(shape.heads) - head)
                      : std::min(most_heads, group - head % group);
      items.push_back({row, sequence, position, tokens, head, heads});
    }
  }
  return items;
}

}  // namespace

void cache_keys_values(const Tensor& cache, const Tensor& qkv, const Batch& batch, const AttentionShape& s, Stream&) {
  check_cache(cache, qkv, batch, s);
  const auto element = static_cast<int64_t>(size_of(qkv.dtype));
  const int64_t bytes = 2 * s.kv_heads * s.head_dim * element;
  const int64_t row_bytes = qkv.dim(1) * element, queries = s.heads * s.head_dim * element;
  for (int64_t row = 0; row < batch.tokens; ++row) {
    const int64_t sequence = batch.sequence_ids.as<int64_t>()[row], position = batch.positions.as<int32_t>()[row];
    LLMTRAIN_CHECK(sequence >= 0 && sequence < cache.dim(0) && position >= 0 && position < cache.dim(1),
                   "a token is outside the cache");
    std::memcpy(static_cast<char*>(cache.data) + place_of(cache, batch, row) * bytes,
                static_cast<const char*>(qkv.data) + row * row_bytes + queries, static_cast<size_t>(bytes));
  }
}

void attention_cached(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Tensor& cache, const Batch& batch,
                      const AttentionShape& s, ProductRole /*role*/, Stream&) {
  check_cache(cache, qkv, batch, s);
  check_cached_output(out, lse, qkv, s);
  const ProfileSpan span("attention_cached", [&] {
    double keys = 0;  // that all queries see
    for (int64_t row = 0; row < batch.tokens; ++row) {
      const int64_t seen = batch.positions.as<int32_t>()[row] + int64_t{1};
      keys += static_cast<double>(s.window > 0 ? std::min(seen, s.window) : seen);
    }
    const auto row_bytes = static_cast<double>(cache.dim(2) * static_cast<int64_t>(size_of(cache.dtype)));
    return Work{4 * keys * static_cast<double>(s.heads * s.head_dim), keys * row_bytes};
  });
  const std::vector<CachedItem> items = cached_items(cache, batch, s);
  dispatch_operands(qkv.dtype, [&]<class S, class P>(S*, P*) {
    const CachedPass<S, P> pass(out, lse, qkv, cache, s, items);
    std::atomic<size_t> next{0};
    const int64_t bytes = pass.bytes();
    parallel_for(std::min<int64_t>(thread_count(), static_cast<int64_t>(items.size())), [&](int64_t) {
      thread_local Buffer memory;
      char* own = memory.reserve(bytes);
      for (size_t i = next.fetch_add(1); i < items.size(); i = next.fetch_add(1)) pass.run(items[i], own);
      leave_micro_kernels();
    });
  });
}

}  // namespace llmtrain
