// Backward pass. A work item owns a few consecutive key blocks of one key head and processes all queries that see them,
// heads outside, query blocks inside: dK and dV stay with the item. dQ of a query block is the sum of the items'
// contributions, in descending order of keys: an item waits until the next higher one has added its own. Items start in
// that order and each visits its query blocks from the diagonal on, so that the wait is short.

#include <algorithm>
#include <atomic>
#include <numbers>
#include <thread>

#include "core/profile.hpp"
#include "kernels/attention_checks.hpp"
#include "kernels/host/attention/attention_dropout.hpp"
#include "kernels/host/attention/attention_run.hpp"
#include "kernels/host/attention/attention_short_run.hpp"
#include "kernels/host/attention/attention_softmax.hpp"
#include "kernels/host/fast_math.hpp"
#include "kernels/host/lanes.hpp"

namespace llmtrain {

namespace host {

namespace {

constexpr int block = attention_block;
constexpr int tile_size = block * block;
constexpr int key_blocks_per_item = 4;
constexpr int vector = 8;  ///< queries per Float8

/// Key block of an item: operands and gradients, which accumulate while the item runs.
template <class P>
struct KeyBlock {
  P* key;             ///< A operand [64, D]
  P* value;           ///< A operand [64, D]
  P* key_transposed;  ///< A operand [D, 64]
  float* dkey;        ///< [64, D], without the factor `scale`
  float* dvalue;      ///< [64, D]
};

struct alignas(64) QueryStatistics {
  float lse[block];    ///< times log2(e); 0 beyond the segment
  float delta[block];  ///< sum(dout * out); 0 beyond the segment
};

/// Query block: operands.
template <class P>
struct QueryBlock {
  P* query_channels;  ///< B operand [D, 64]
  P* dout_channels;   ///< B operand [D, 64]
  P* query_rows;      ///< B operand [64, D]
  P* dout_rows;       ///< B operand [64, D]
  QueryStatistics* statistics;
};

template <class P>
struct BackwardBuffers {
  KeyBlock<P> keys[key_blocks_per_item];
  QueryBlock<P> query;
  P* rows;           ///< [64, D] staging
  float* scores;     ///< [keys, queries], then probabilities
  float* dscores;    ///< [keys, queries]: gradient of the probabilities, then of the scores
  float* keep;       ///< dropout mask [keys, queries]
  P* probabilities;  ///< A operand [keys, queries]; after dropout
  P* ds_rows;        ///< A operand [keys, queries]
  P* ds_pairs;       ///< B operand [keys, queries]
  float* dquery;     ///< [D, 64]
  float* staging;    ///< [64, D]
  void* scratch;

  BackwardBuffers(Carver& carver, int head_dim) {
    const int64_t panel = int64_t{block} * padded_head_dim(head_dim);
    for (KeyBlock<P>& k : keys) {
      k.key = carver.take<P>(panel);
      k.value = carver.take<P>(panel);
      k.key_transposed = carver.take<P>(panel);
      k.dkey = carver.take<float>(panel);
      k.dvalue = carver.take<float>(panel);
    }
    query.query_channels = carver.take<P>(panel);
    query.dout_channels = carver.take<P>(panel);
    query.query_rows = carver.take<P>(panel);
    query.dout_rows = carver.take<P>(panel);
    query.statistics = carver.take<QueryStatistics>(1);
    rows = carver.take<P>(panel);
    scores = carver.take<float>(tile_size);
    dscores = carver.take<float>(tile_size);
    keep = carver.take<float>(tile_size);
    if constexpr (std::is_same_v<P, float>) {  // the tiles themselves are the operands
      probabilities = scores;
      ds_rows = dscores;
      ds_pairs = dscores;
    } else {
      probabilities = carver.take<P>(tile_size);
      ds_rows = carver.take<P>(tile_size);
      ds_pairs = carver.take<P>(tile_size);
    }
    dquery = carver.take<float>(panel);
    staging = carver.take<float>(panel);
    scratch = carver.take<char>(BlockProduct::scratch_bytes);
  }
};

/// scores -> probabilities p (0 where hidden), after dropout; dscores (gradient of dropout's output) -> gradient of the
/// scores, p * (dscores - delta).
void score_gradients(float* scores, float* dscores, const float* keep, const QueryStatistics& query, float scale,
                     const TileMask& mask) {
  const bool full = mask.full();
  for (int r = 0; r < block; ++r) {
    float* p = scores + r * block;
    float* dp = dscores + r * block;
    const int low = full ? 0 : mask.low(r);
    const int high = full ? block : mask.high(r);
    for (int c = low / vector * vector; c < high; c += vector) {
      store8(p + c, fast_exp2_capped(load8(p + c) * scale - load8(query.lse + c)));
    }
    std::fill(p, p + low, 0.0f);
    std::fill(p + high, p + block, 0.0f);
    for (int c = 0; c < block; c += vector) {
      const Float8 kept = keep == nullptr ? Float8{} + 1.0f : load8(keep + r * block + c);
      const Float8 probability = load8(p + c);
      store8(dp + c, probability * (load8(dp + c) * kept - load8(query.delta + c)));
      if (keep != nullptr) store8(p + c, probability * kept);
    }
  }
}

/// The same for capped scores, for which the tile holds t: the slope of the cap is 1 - t^2.
void capped_score_gradients(float* scores, float* dscores, const float* keep, const QueryStatistics& query, float scale,
                            const TileMask& mask) {
  for (int r = 0; r < block; ++r) {
    float* p = scores + r * block;
    float* dp = dscores + r * block;
    for (int c = 0; c < block; c += vector) {
      const Float8 t = load8(p + c);
      const Float8 kept = keep == nullptr ? Float8{} + 1.0f : load8(keep + r * block + c);
      const Float8 probability = fast_exp2_capped(t * scale - load8(query.lse + c));
      store8(dp + c, probability * (1.0f - t * t) * (load8(dp + c) * kept - load8(query.delta + c)));
      store8(p + c, probability * kept);
    }
    for (float* row : {p, dp}) {
      std::fill(row, row + mask.low(r), 0.0f);
      std::fill(row + mask.high(r), row + block, 0.0f);
    }
  }
}

/// Operands of tiles: fp32 tiles are their own operands.
void pack_tiles(const BackwardBuffers<float>& /*b*/) {}
void pack_tiles(const BackwardBuffers<bf16>& b) {
  for (int e = 0; e < tile_size; e += vector) {
    store8(b.probabilities + e, load8(b.scores + e));
    store8(b.ds_rows + e, load8(b.dscores + e));
  }
  pack_rows_inner(b.ds_pairs, b.ds_rows, block);
}

/// S: storage, P: operands of products.
template <class S, class P>
class BackwardPass {
 public:
  BackwardPass(const AttentionBackward& args, const Batch& batch, const AttentionShape& shape, const Dropout& dropout,
               const AttentionWorkspace& workspace)
      : layout_(shape),
        window_{shape.window},
        scale_(shape.scale),
        score_scale_(shape),
        short_segments_(short_segments<P>(shape, dropout)),
        padded_(padded_head_dim(layout_.head_dim)),
        args_(args),
        dqkv_(args.dqkv.as<S>()),
        dout_(args.dout.as<S>()),
        out_(args.out.as<S>()),
        lse_(args.lse.as<float>()),
        qkv_(args.qkv.as<S>()),
        batch_(batch),
        dropout_active_(dropout.active()),
        dropout_(dropout, shape),
        workspace_(workspace),
        scores_(BlockProduct::get({dtype_of<P>, block, block, padded_, false})),
        key_gradient_(BlockProduct::get({dtype_of<P>, block, padded_, block, true})),
        first_query_gradient_(BlockProduct::get({dtype_of<P>, padded_, block, block, false})),
        more_query_gradient_(BlockProduct::get({dtype_of<P>, padded_, block, block, true})) {}

  int units() const { return layout_.kv_heads; }
  int blocks_per_strip() const { return key_blocks_per_item; }

  /// delta = sum(dout * out) per row and head (Dao et al. 2022, eq. 4); also resets the counts of contributions to dQ.
  void prepare() const {
    parallel_for(batch_.tokens, [this](int64_t row) {
      for (int h = 0; h < layout_.heads; ++h) {
        const S* a = layout_.output(dout_, h, row).data;
        const S* b = layout_.output(out_, h, row).data;
        const int64_t index = h * batch_.tokens + row;
        workspace_.delta[index] = static_cast<float>(lane_sum(
            layout_.head_dim, [a, b](int64_t d, int64_t n) { return load_up_to(a + d, n) * load_up_to(b + d, n); }));
        workspace_.turns[index] = 0;
      }
    });
  }

  void expect(const ItemList::Item& item) const {
    if (!takes_short(item)) return;
    const int first = item.unit * layout_.group();
    short_segment(item).expect(qkv_, first, layout_.group());
    short_segment(item).expect_outputs(dout_, first, layout_.group());
  }

  /// Returns the number of tiles visited.
  int64_t run(const ItemList::Item& item, void* memory) const {
    const Segment& segment = item.segment;
    if (takes_short(item)) {
      short_segment(item).backward(args_, workspace_.delta, batch_.tokens, item.unit, scale_, memory);
      return layout_.group();
    }
    Carver carver(memory);
    const BackwardBuffers<P> b(carver, layout_.head_dim);
    const int first = item.strip * key_blocks_per_item;
    const int count = std::min(key_blocks_per_item, segment.blocks() - first);
    for (int k = 0; k < count; ++k) load_keys(b, b.keys[k], segment, item.unit, first + k);

    int64_t visited = 0;
    const int last_query_block = window_.last_query_block(first + count - 1, segment.blocks());
    for (int h = item.unit * layout_.group(); h < (item.unit + 1) * layout_.group(); ++h) {
      for (int i = first; i <= last_query_block; ++i) {
        load_query(b, segment, h, i);
        bool started = false;
        for (int k = 0; k < count; ++k) {
          const int j = first + k;
          if (j > i || j < window_.first_key_block(i)) continue;
          visit(b, segment, h, i, j, b.keys[k], started);
          started = true;
          ++visited;
        }
        add_query_gradient(b, segment, h, i, item.strip);
      }
    }
    for (int k = 0; k < count; ++k) store_keys(b.keys[k], segment, item.unit, first + k);
    return visited;
  }

 private:
  bool takes_short(const ItemList::Item& item) const { return short_segments_ && item.segment.blocks() == 1; }
  ShortSegment<S> short_segment(const ItemList::Item& item) const {
    return {layout_, item.segment.begin, item.segment.rows_of(0), score_scale_.powers};
  }

  static int64_t first_row(const Segment& segment, int i) { return segment.begin + int64_t{i} * block; }

  void load_keys(const BackwardBuffers<P>& b, const KeyBlock<P>& k, const Segment& segment, int kv_head, int j) const {
    const int64_t row = first_row(segment, j);
    const int rows = segment.rows_of(j);
    load_rows(k.key, layout_.key<const S>(qkv_, kv_head, row), rows);
    load_rows(k.value, layout_.value<const S>(qkv_, kv_head, row), rows);
    pack_transposed(k.key_transposed, k.key, padded_, b.rows);
    std::fill(k.dkey, k.dkey + block * padded_, 0.0f);
    std::fill(k.dvalue, k.dvalue + block * padded_, 0.0f);
  }

  void store_keys(const KeyBlock<P>& k, const Segment& segment, int kv_head, int j) const {
    const int64_t row = first_row(segment, j);
    const int rows = segment.rows_of(j);
    store_rows(layout_.key(dqkv_, kv_head, row), k.dkey, scale_, rows);
    store_rows(layout_.value(dqkv_, kv_head, row), k.dvalue, 1.0f, rows);
  }

  void load_query(const BackwardBuffers<P>& b, const Segment& segment, int head, int i) const {
    const int64_t row = first_row(segment, i);
    const int rows = segment.rows_of(i);
    const QueryBlock<P>& q = b.query;
    load_operands(q.query_channels, q.query_rows, b.rows, layout_.query<const S>(qkv_, head, row), rows);
    load_operands(q.dout_channels, q.dout_rows, b.rows, layout_.output<const S>(dout_, head, row), rows);
    const int64_t index = head * batch_.tokens + row;
    QueryStatistics& statistics = *q.statistics;
    for (int c = 0; c < rows; ++c) statistics.lse[c] = lse_[index + c] * std::numbers::log2e_v<float>;
    std::copy(workspace_.delta + index, workspace_.delta + index + rows, statistics.delta);
    std::fill(statistics.lse + rows, statistics.lse + block, 0.0f);
    std::fill(statistics.delta + rows, statistics.delta + block, 0.0f);
  }

  void load_operands(P* channels, P* inner_rows, P* staging, const HeadRows<const S>& src, int rows) const {
    if constexpr (std::is_same_v<P, bf16>) {
      load_rows(staging, src, rows);
      pack_channels_inner(channels, staging, padded_);
      pack_rows_inner(inner_rows, staging, padded_);
    } else {
      load_rows(inner_rows, src, rows);
      pack_channels_inner(channels, inner_rows, padded_);
    }
  }

  void visit(const BackwardBuffers<P>& b, const Segment& segment, int head, int i, int j, const KeyBlock<P>& k,
             bool started) const {
    const QueryBlock<P>& q = b.query;
    scores_.run(k.key, q.query_channels, b.scores, b.scratch);
    scores_.run(k.value, q.dout_channels, b.dscores, b.scratch);
    if (dropout_active_) dropout_.fill(b.keep, head, tile_rows(batch_, segment, i, j));
    const float* keep = dropout_active_ ? b.keep : nullptr;
    const TileMask mask(j, i, window_.window);
    if (score_scale_.capped()) {
      score_scale_.cap(b.scores, attention_block * attention_block);
      capped_score_gradients(b.scores, b.dscores, keep, *q.statistics, score_scale_.powers, mask);
    } else {
      score_gradients(b.scores, b.dscores, keep, *q.statistics, score_scale_.powers, mask);
    }
    pack_tiles(b);
    key_gradient_.run(b.probabilities, q.dout_rows, k.dvalue, b.scratch);
    key_gradient_.run(b.ds_rows, q.query_rows, k.dkey, b.scratch);
    (started ? more_query_gradient_ : first_query_gradient_).run(k.key_transposed, b.ds_pairs, b.dquery, b.scratch);
  }

  /// Adds b.dquery to the contributions of the items of later keys; the last item stores the sum.
  void add_query_gradient(const BackwardBuffers<P>& b, const Segment& segment, int head, int i, int strip) const {
    const int turn = i / key_blocks_per_item - strip;
    const bool last = strip == window_.first_key_block(i) / key_blocks_per_item;
    const int64_t row = first_row(segment, i);
    const int rows = segment.rows_of(i);
    const std::atomic_ref<int32_t> turns(workspace_.turns[head * batch_.tokens + row]);
    while (turns.load(std::memory_order_acquire) != turn) std::this_thread::yield();
    float* sum = workspace_.dq + (head * batch_.tokens + row) * layout_.head_dim;
    for (int d = 0; d < layout_.head_dim; ++d) {
      float* part = b.dquery + d * block;
      float* whole = sum + d * rows;
      if (turn > 0) {
        for (int c = 0; c < rows; ++c) part[c] += whole[c];
      }
      if (!last) std::copy(part, part + rows, whole);
    }
    if (last) store_transposed(layout_.query(dqkv_, head, row), b.dquery, scale_, rows, b.staging);
    turns.store(turn + 1, std::memory_order_release);
  }

  HeadLayout layout_;
  CausalWindow window_;
  float scale_;
  ScoreScale score_scale_;
  bool short_segments_;
  int padded_;
  const AttentionBackward& args_;
  S* dqkv_;
  const S* dout_;
  const S* out_;
  const float* lse_;
  const S* qkv_;
  const Batch& batch_;
  bool dropout_active_;
  DropoutTile dropout_;
  const AttentionWorkspace& workspace_;
  const BlockProduct& scores_;
  const BlockProduct& key_gradient_;
  const BlockProduct& first_query_gradient_;
  const BlockProduct& more_query_gradient_;
};

}  // namespace

int64_t backward_piece_bytes(int head_dim) {
  Carver single, half, short_segment;
  BackwardBuffers<float>(single, head_dim);
  BackwardBuffers<bf16>(half, head_dim);
  short_backward(short_segment, head_dim);
  return std::max({single.used(), half.used(), short_segment.used()});
}

}  // namespace host

void attention_backward(const AttentionBackward& args, const Batch& batch, const AttentionShape& shape,
                        const Dropout& dropout, const Tensor& workspace, Stream& /*stream*/) {
  check_attention(args.qkv, batch, shape, dropout);
  check_attention_gradients(args, shape);
  const ProfileSpan span("attention_backward", [&] {
    return traffic({&args.qkv, &args.out, &args.dout, &args.dqkv}, 5 * host::product_flops(batch, shape));
  });
  const auto w = host::AttentionWorkspace::open(workspace, shape, batch.tokens);
  host::dispatch_operands(args.qkv.dtype, [&]<class S, class P>(S*, P*) {
    const host::BackwardPass<S, P> pass(args, batch, shape, dropout, w);
    pass.prepare();
    host::run_items(w, host::plan_items(w, batch, pass.units(), pass.blocks_per_strip()), pass);
  });
}

}  // namespace llmtrain
