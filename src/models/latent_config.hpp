#pragma once
#include <cstdint>

#include "kernels/latent_heads.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// Keys of [model] that describe multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and
/// values are products of a narrow vector of each token, and so may be the queries.
struct LatentConfig {
  static constexpr double norm_epsilon = 1e-6;  ///< of the norms of these vectors, whatever the model's is

  int64_t query_rank = 0;   ///< q_lora_rank; 0: queries are products of the layer's input
  int64_t rank = 0;         ///< kv_lora_rank; 0: attention without latent vectors
  int64_t plain = 0;        ///< qk_nope_head_dim, elements of a query or key that are not rotated
  int64_t rotated = 0;      ///< qk_rope_head_dim, elements that are
  int64_t value = 0;        ///< v_head_dim
  bool interleaved = true;  ///< rope_interleave: rotated elements 2i and 2i + 1 are a pair; else i and i + R/2

  bool exist() const { return rank > 0; }
  int64_t head_dim() const { return plain + rotated; }
  LatentHeads heads(int64_t count) const { return {count, plain, rotated, value, interleaved}; }
  /// Rows of the first matrix that are queries, latent or not.
  int64_t query_rows(int64_t heads) const { return query_rank > 0 ? query_rank : heads * head_dim(); }
  void visit(DeckKeys& keys);
  /// Sets what the deck leaves to the family.
  void set_defaults(DeckLoader& deck, const LatentConfig& of_family);
  void mark_unused(DeckLoader& deck) const;
  bool operator==(const LatentConfig&) const = default;
};

}  // namespace llmtrain
