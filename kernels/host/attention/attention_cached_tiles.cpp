// Attention to cached keys and values in the order of attention_forward: keys in the same blocks, counted from the
// start of the sequence, by the same products, of 16 queries instead of 64. A block product sums each of its elements
// alike, whatever the number of columns.

#include "kernels/host/attention/attention_cached_tiles.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/host/attention/attention_run.hpp"
#include "kernels/host/attention/attention_short_run.hpp"
#include "kernels/host/attention/attention_softmax.hpp"
#include "kernels/host/buffer.hpp"

namespace llmtrain::host {

namespace {

constexpr int block = attention_block;
constexpr int tile_columns = 16;  ///< the fewest columns of a block product

/// Consecutive tokens of a sequence inside one block, and query heads that read one key head; together they fill at
/// most one tile. Column r * heads + h of the tile is head first_head + h of token r.
struct CachedItem {
  int64_t row;       ///< row of the first token in the batch
  int64_t sequence;  ///< place of the sequence's first token in the cache
  int position;      ///< of the first token
  int tokens;
  int first_head;
  int heads;

  int query_block() const { return position / block; }
  int last() const { return position + tokens - 1; }
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
  P* spare;          ///< [64, D]
  P* key;            ///< [64, D]
  P* value;          ///< [D, 64]
  P* query;          ///< B operand [D, 16]
  float* output;     ///< [D, 16]
  float* staging;    ///< [16, D]
  float* scores;     ///< [keys, queries]
  P* probabilities;  ///< B operand [keys, queries]
  OnlineSoftmax<tile_columns>* softmax;
  void* scratch;

  CachedBuffers(Carver& carver, int head_dim) {
    const int64_t padded = padded_head_dim(head_dim);
    for (P** p : {&rows, &spare, &key, &value}) *p = carver.take<P>(block * padded);
    query = carver.take<P>(tile_columns * padded);
    output = carver.take<float>(tile_columns * padded);
    staging = carver.take<float>(tile_columns * padded);
    scores = carver.take<float>(block * tile_columns);
    if constexpr (std::is_same_v<P, float>) {
      probabilities = scores;
    } else {
      probabilities = carver.take<P>(block * tile_columns);
    }
    softmax = carver.take<OnlineSoftmax<tile_columns>>(1);
    scratch = carver.take<char>(BlockProduct::scratch_bytes);
  }
};

/// S: storage, P: operands of products.
template <class S, class P>
class CachedPass {
 public:
  CachedPass(const Tensor& out, const Tensor& qkv, const Tensor& cache, const AttentionShape& shape)
      : layout_(shape),
        window_{shape.window},
        scale_(shape),
        short_segments_(short_segments<P>(shape, Dropout{})),
        padded_(padded_head_dim(layout_.head_dim)),
        out_(out.as<S>()),
        qkv_(qkv.as<S>()),
        cache_(cache.as<S>()),
        stride_(cache.dim(2)),
        scores_(BlockProduct::get({dtype_of<P>, block, tile_columns, padded_, false})),
        first_output_(BlockProduct::get({dtype_of<P>, padded_, tile_columns, block, false})),
        more_output_(BlockProduct::get({dtype_of<P>, padded_, tile_columns, block, true})) {}

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
    const int first = window_.first_key_block(item.query_block());
    for (int j = first; j <= item.query_block(); ++j) {
      const int keys = std::min(block, item.last() + 1 - j * block);
      load_rows(f.key, key(item, j), keys);
      load_rows(f.rows, value(item, j), keys);
      pack_transposed(f.value, f.rows, padded_, f.spare);
      scores_.run(f.key, f.query, f.scores, f.scratch);
      const bool corrected = f.softmax->add_tile(f.scores, scale_, CachedMask(item, j, window_.window));
      if constexpr (std::is_same_v<P, bf16>) pack_rows_inner(f.probabilities, f.scores, tile_columns);
      if (j > first && corrected) f.softmax->correct(f.output, padded_);
      (j == first ? first_output_ : more_output_).run(f.value, f.probabilities, f.output, f.scratch);
    }
    f.softmax->normalize(f.output, padded_);
    transpose_words(words(f.staging), words(f.output), padded_, tile_columns);
    for (int r = 0; r < item.tokens; ++r) {
      store_rows(output(item, r), f.staging + r * item.heads * padded_, 1.0f, item.heads);
    }
  }

 private:
  /// Rows of the item's heads, of one token.
  HeadRows<const S> query(const CachedItem& item, int token) const {
    return {layout_.query<const S>(qkv_, item.first_head, item.row + token).data, layout_.head_dim, layout_.head_dim};
  }
  HeadRows<S> output(const CachedItem& item, int token) const {
    return {layout_.output(out_, item.first_head, item.row + token).data, layout_.head_dim, layout_.head_dim};
  }
  /// Rows of the item's key head, from key block j on.
  HeadRows<const S> key(const CachedItem& item, int j) const {
    const int64_t kv_head = item.first_head / layout_.group();
    return {cache_ + (item.sequence + int64_t{j} * block) * stride_ + kv_head * layout_.head_dim, stride_,
            layout_.head_dim};
  }
  HeadRows<const S> value(const CachedItem& item, int j) const {
    HeadRows<const S> rows = key(item, j);
    rows.data += int64_t{layout_.kv_heads} * layout_.head_dim;
    return rows;
  }

  void load_queries(const CachedBuffers<P>& f, const CachedItem& item) const {
    std::fill(f.rows, f.rows + tile_columns * padded_, P(0.0f));
    for (int r = 0; r < item.tokens; ++r) copy_rows(f.rows + r * item.heads * padded_, query(item, r), item.heads);
    pack_channels_inner(f.query, f.rows, padded_, tile_columns);
    f.softmax->reset();
  }

  void run_short(const CachedItem& item, ShortForward b) const {
    b.scale = scale_.powers;
    b.first = item.position / short_group * short_group;
    b.rows = (item.last() / short_group + 1) * short_group;
    load_rows(b.key, key(item, 0), item.last() + 1);
    transpose_words(words(b.key_transposed), words(b.key), block, padded_);
    load_rows(b.value, value(item, 0), item.last() + 1);
    std::fill(b.query + b.first * padded_, b.query + b.rows * padded_, 0.0f);
    for (int h = 0; h < item.heads; ++h) {
      for (int r = 0; r < item.tokens; ++r) {
        HeadRows<const S> own = query(item, r);
        own.data += h * layout_.head_dim;
        copy_rows(b.query + (item.position + r) * padded_, own, 1);
      }
      short_attention(b);
      store_rows(layout_.output(out_, item.first_head + h, item.row), b.output + item.position * padded_, 1.0f,
                 item.tokens);
    }
  }

  HeadLayout layout_;
  CausalWindow window_;
  ScoreScale scale_;
  bool short_segments_;
  int padded_;
  S* out_;
  const S* qkv_;
  const S* cache_;
  int64_t stride_;
  const BlockProduct& scores_;
  const BlockProduct& first_output_;
  const BlockProduct& more_output_;
};

std::vector<CachedItem> cached_items(const Tensor& cache, const Batch& batch, const AttentionShape& shape) {
  const int32_t* positions = batch.positions.as<int32_t>();
  const auto group = static_cast<int>(shape.heads / shape.kv_heads);
  const int most_heads = std::min(group, tile_columns), most_tokens = tile_columns / most_heads;
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
      heads = std::min(most_heads, group - head % group);
      items.push_back({row, sequence, position, tokens, head, heads});
    }
  }
  return items;
}

}  // namespace

void attention_cached_tiles(const Tensor& out, const Tensor& qkv, const Tensor& cache, const Batch& batch,
                            const AttentionShape& shape) {
  const std::vector<CachedItem> items = cached_items(cache, batch, shape);
  dispatch_operands(qkv.dtype, [&]<class S, class P>(S*, P*) {
    const CachedPass<S, P> pass(out, qkv, cache, shape);
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

}  // namespace llmtrain::host
