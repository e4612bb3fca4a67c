// Forward pass. A work item is up to four (query head, query block) pairs that read the same keys and values: these
// are packed once and serve all pairs. Softmax is computed online (Milakov & Gimelshein 2018), in powers of two.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/profile.hpp"
#include "kernels/attention_checks.hpp"
#include "kernels/host/attention/attention_dropout.hpp"
#include "kernels/host/attention/attention_run.hpp"
#include "kernels/host/attention/attention_short_run.hpp"
#include "kernels/host/attention/attention_softmax.hpp"
#include "kernels/host/fast_math.hpp"

namespace llmtrain {

namespace host {

namespace {

constexpr int block = attention_block;
constexpr int tile_size = block * block;
constexpr int max_pairs = 4;
using Softmax = OnlineSoftmax<block>;

/// Query heads and query blocks of one work item.
struct PairShape {
  int heads;  ///< heads of one group
  int blocks;
  int units_per_group;

  explicit PairShape(int group)
      : heads(std::min(group, max_pairs)), blocks(max_pairs / heads), units_per_group((group + heads - 1) / heads) {}
};

template <class P>
struct ForwardBuffers {
  P* rows;                   ///< [64, D] staging
  P* spare;                  ///< [64, D]
  P* key;                    ///< [64, D]
  P* value;                  ///< [D, 64]
  P* query[max_pairs];       ///< B operands [D, 64]
  float* output[max_pairs];  ///< [D, 64]
  Softmax* softmax;          ///< [pairs]
  float* scores;             ///< [keys, queries]
  P* probabilities;          ///< B operand [keys, queries]
  float* keep;               ///< dropout mask [keys, queries]
  float* staging;            ///< [64, D]
  void* scratch;

  ForwardBuffers(Carver& carver, int head_dim) {
    const int64_t panel = int64_t{block} * padded_head_dim(head_dim);
    rows = carver.take<P>(panel);
    spare = carver.take<P>(panel);
    key = carver.take<P>(panel);
    value = carver.take<P>(panel);
    for (P*& q : query) q = carver.take<P>(panel);
    for (float*& o : output) o = carver.take<float>(panel);
    softmax = carver.take<Softmax>(max_pairs);
    scores = carver.take<float>(tile_size);
    if constexpr (std::is_same_v<P, float>) {
      probabilities = scores;  // the tile itself is the operand
    } else {
      probabilities = carver.take<P>(tile_size);
    }
    keep = carver.take<float>(tile_size);
    staging = carver.take<float>(panel);
    scratch = carver.take<char>(BlockProduct::scratch_bytes);
  }
};

/// S: storage, P: operands of products.
template <class S, class P>
class ForwardPass {
 public:
  ForwardPass(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Batch& batch, const AttentionShape& shape,
              const Dropout& dropout)
      : layout_(shape),
        pairs_(layout_.group()),
        window_{shape.window},
        scale_(shape),
        short_segments_(short_segments<P>(shape, dropout)),
        padded_(padded_head_dim(layout_.head_dim)),
        out_(out.as<S>()),
        lse_(lse.as<float>()),
        qkv_(qkv.as<S>()),
        batch_(batch),
        dropout_active_(dropout.active()),
        dropout_(dropout, shape),
        scores_(BlockProduct::get({dtype_of<P>, block, block, padded_, false})),
        first_output_(BlockProduct::get({dtype_of<P>, padded_, block, block, false})),
        more_output_(BlockProduct::get({dtype_of<P>, padded_, block, block, true})) {}

  int units() const { return layout_.kv_heads * pairs_.units_per_group; }
  int blocks_per_strip() const { return pairs_.blocks; }

  void expect(const ItemList::Item& item) const {
    if (takes_short(item)) short_segment(item).expect(qkv_, first_head(item), heads(item));
  }

  /// Returns the number of tiles visited.
  int64_t run(const ItemList::Item& item, void* memory) const {
    const int kv_head = item.unit / pairs_.units_per_group;
    const int first_head = this->first_head(item), heads = this->heads(item);
    int first_block = item.strip * pairs_.blocks;
    int blocks = std::min(pairs_.blocks, item.segment.blocks() - first_block);
    int64_t visited = 0;
    if (takes_short(item)) {
      short_segment(item).forward(out_, lse_, qkv_, batch_.tokens, first_head, heads, memory);
      visited = heads;
      ++first_block;
      if (--blocks == 0) return visited;
    }
    Carver carver(memory);
    const ForwardBuffers<P> buffers(carver, layout_.head_dim);

    for (int p = 0; p < heads * blocks; ++p)
      load_query(buffers, item.segment, first_head + p / blocks, first_block + p % blocks, p);
    for (int j = window_.first_key_block(first_block); j < first_block + blocks; ++j) {
      load_keys(buffers, item.segment, kv_head, j);
      for (int p = 0; p < heads * blocks; ++p) {
        const int i = first_block + p % blocks;
        if (j > i || j < window_.first_key_block(i)) continue;
        visit(buffers, item.segment, first_head + p / blocks, i, j, p);
        ++visited;
      }
    }
    for (int p = 0; p < heads * blocks; ++p) {
      finish(buffers, item.segment, first_head + p / blocks, first_block + p % blocks, p);
    }
    return visited;
  }

 private:
  int first_head(const ItemList::Item& item) const {
    return item.unit / pairs_.units_per_group * layout_.group() + item.unit % pairs_.units_per_group * pairs_.heads;
  }
  int heads(const ItemList::Item& item) const {
    return std::min(pairs_.heads, (item.unit / pairs_.units_per_group + 1) * layout_.group() - first_head(item));
  }
  /// The first block of a segment takes the short path whatever follows it: the bits of a row do not depend on later
  /// ones.
  bool takes_short(const ItemList::Item& item) const { return short_segments_ && item.strip == 0; }
  ShortSegment<S> short_segment(const ItemList::Item& item) const {
    return {layout_, item.segment.begin, item.segment.rows_of(0), scale_.powers};
  }

  static int64_t first_row(const Segment& segment, int b) { return segment.begin + int64_t{b} * block; }

  void load_query(const ForwardBuffers<P>& f, const Segment& segment, int head, int i, int pair) const {
    load_rows(f.rows, layout_.query<const S>(qkv_, head, first_row(segment, i)), segment.rows_of(i));
    pack_channels_inner(f.query[pair], f.rows, padded_);
    f.softmax[pair].reset();
  }

  void load_keys(const ForwardBuffers<P>& f, const Segment& segment, int kv_head, int j) const {
    const int64_t row = first_row(segment, j);
    load_rows(f.key, layout_.key<const S>(qkv_, kv_head, row), segment.rows_of(j));
    load_rows(f.rows, layout_.value<const S>(qkv_, kv_head, row), segment.rows_of(j));
    pack_transposed(f.value, f.rows, padded_, f.spare);
  }

  void visit(const ForwardBuffers<P>& f, const Segment& segment, int head, int i, int j, int pair) const {
    Softmax& state = f.softmax[pair];
    const TileMask mask(j, i, window_.window);
    scores_.run(f.key, f.query[pair], f.scores, f.scratch);
    const bool corrected = state.add_tile(f.scores, scale_, mask);
    if (dropout_active_) apply_dropout(f, segment, head, i, j);
    if constexpr (std::is_same_v<P, bf16>) pack_rows_inner(f.probabilities, f.scores, block);
    const bool first = j == window_.first_key_block(i);
    if (!first && corrected) state.correct(f.output[pair], padded_);
    (first ? first_output_ : more_output_).run(f.value, f.probabilities, f.output[pair], f.scratch);
  }

  void apply_dropout(const ForwardBuffers<P>& f, const Segment& segment, int head, int i, int j) const {
    dropout_.fill(f.keep, head, tile_rows(batch_, segment, i, j));
    for (int e = 0; e < tile_size; ++e) f.scores[e] *= f.keep[e];
  }

  void finish(const ForwardBuffers<P>& f, const Segment& segment, int head, int i, int pair) const {
    Softmax& state = f.softmax[pair];
    float* output = f.output[pair];
    state.normalize(output, padded_);
    const int64_t row = first_row(segment, i);
    const int rows = segment.rows_of(i);
    store_transposed(layout_.output(out_, head, row), output, 1.0f, rows, f.staging);
    float* lse = lse_ + head * batch_.tokens + row;
    for (int c = 0; c < rows; ++c) lse[c] = (state.maximum[c] + std::log2(state.sum[c])) * std::numbers::ln2_v<float>;
  }

  HeadLayout layout_;
  PairShape pairs_;
  CausalWindow window_;
  ScoreScale scale_;
  bool short_segments_;
  int padded_;
  S* out_;
  float* lse_;
  const S* qkv_;
  const Batch& batch_;
  bool dropout_active_;
  DropoutTile dropout_;
  const BlockProduct& scores_;
  const BlockProduct& first_output_;
  const BlockProduct& more_output_;
};

}  // namespace

int64_t forward_piece_bytes(int head_dim) {
  Carver single, half, short_segment;
  ForwardBuffers<float>(single, head_dim);
  ForwardBuffers<bf16>(half, head_dim);
  short_forward(short_segment, head_dim);
  return std::max({single.used(), half.used(), short_segment.used()});
}

}  // namespace host

void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Batch& batch,
                       const AttentionShape& shape, const Dropout& dropout, const Tensor& workspace,
                       Stream& /*stream*/) {
  check_attention(qkv, batch, shape, dropout);
  check_attention_output(out, lse, qkv, shape);
  const ProfileSpan span("attention_forward", [&] {
    return traffic({&qkv, &out}, 2 * host::product_flops(batch, shape));
  });
  const auto w = host::AttentionWorkspace::open(workspace, shape, batch.tokens);
  host::dispatch_operands(qkv.dtype, [&]<class S, class P>(S*, P*) {
    const host::ForwardPass<S, P> pass(out, lse, qkv, batch, shape, dropout);
    host::run_items(w, host::plan_items(w, batch, pass.units(), pass.blocks_per_strip()), pass);
  });
}

}  // namespace llmtrain
