#pragma once
// Draws of the next tokens of texts from their logits.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/batch.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// The distribution that a token is drawn from, see SamplingOptions.
struct TokenFilters {
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1, min_p = 0;

  bool exclude_tokens() const { return temperature > 0 && (top_k > 0 || top_p < 1 || min_p > 0); }
  bool operator==(const TokenFilters&) const = default;
};

// Definition, in double precision, every sum in the order that is stated.

/// Index of the highest logit, the lowest among equals. Throws UserError(diverged) for logits that are not finite; a
/// token that is excluded may have -infinity.
size_t highest_logit(std::span<const float> logits);

/// Weights e^((logit - highest) / temperature) of the tokens that the filters keep, 0 of the others; temperature > 0.
/// top_p compares sums in the order of falling logits, then of ids, with that of all in the order of ids. Throws like
/// highest_logit().
std::vector<double> token_weights(std::span<const float> logits, const TokenFilters& filters);

/// Inverse transform sampling of token_weights(), added in the order of ids, by 32 uniform bits; at temperature 0 the
/// highest logit. Throws like it.
int32_t draw_token(std::span<const float> logits, const TokenFilters& filters, uint32_t bits);

/// Sets the bits of the tokens that draw_token() can draw: uint32 [ceil(V / 32)], zero before.
void mark_kept(std::span<uint32_t> bits, std::span<const float> logits, const TokenFilters& filters);

// On the device, for many texts at once.

/// Stands for a token that its sums do not tell.
inline constexpr int32_t undecided_token = ignore_target;

/// tokens, int32 [D]: draw_token() of the first `vocabulary` logits, fp32 [R, V], of row draws[i][0] with the bits
/// draws[i][1], uint32 [D, 2]. kept, uint32 [D, ceil(vocabulary / 32)], as by mark_kept(), or empty. A GPU adds in
/// another order, with bounds of the difference: a token within these of another one is undecided_token, and all tokens
/// are kept; likewise if draw_token() throws. Tokens that are decided are equal on all processors.
void sample_tokens(const Tensor& tokens, const Tensor& kept, const Tensor& logits, const Tensor& draws,
                   int64_t vocabulary, const TokenFilters& filters, Stream& stream);

inline void check_draws(const Tensor& tokens, const Tensor& kept, const Tensor& logits, const Tensor& draws,
                        int64_t vocabulary, const TokenFilters& filters) {
  LLMTRAIN_CHECK(logits.rank == 2 && logits.dtype == DType::f32 && vocabulary > 0 && vocabulary <= logits.dim(1),
                 "logits must be fp32 [R, V] with the whole vocabulary");
  LLMTRAIN_CHECK(draws.rank == 2 && draws.dtype == DType::u32 && draws.dim(1) == 2, "draws must be uint32 [D, 2]");
  LLMTRAIN_CHECK(tokens.dtype == DType::i32 && tokens.numel() == draws.dim(0), "tokens must be int32 [D]");
  LLMTRAIN_CHECK(kept.empty() || filters.temperature > 0, "the highest logit is all that temperature 0 keeps");
  LLMTRAIN_CHECK(kept.empty() || (kept.dtype == DType::u32 && kept.numel() == draws.dim(0) * ((vocabulary + 31) / 32)),
                 "kept tokens are uint32 [D, ceil(V / 32)]");
}

}  // namespace llmtrain
