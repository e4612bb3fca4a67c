#include "kernels/sampling.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/profile.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

void sample_tokens(const Tensor& tokens, const Tensor& kept, const Tensor& logits, const Tensor& draws,
                   int64_t vocabulary, const TokenFilters& filters, Stream& /*stream*/) {
  const ProfileSpan span("sample_tokens", [&] { return traffic({&logits}); });
  check_draws(tokens, kept, logits, draws, vocabulary, filters);
  const auto words = static_cast<size_t>((vocabulary + 31) / 32);
  host::parallel_for(tokens.numel(), [&](int64_t i) {
    const uint32_t* const draw = draws.as<uint32_t>() + 2 * i;
    const std::span<const float> row(logits.as<float>() + draw[0] * logits.dim(1), static_cast<size_t>(vocabulary));
    const std::span<uint32_t> bits =
        kept.empty() ? std::span<uint32_t>() : std::span(kept.as<uint32_t>() + static_cast<size_t>(i) * words, words);
    int32_t& token = tokens.as<int32_t>()[i];
    try {
      token = draw_token(row, filters, draw[1]);
      std::ranges::fill(bits, 0u);
      if (!bits.empty()) mark_kept(bits, row, filters);
    } catch (const UserError&) {
      token = undecided_token;
      std::ranges::fill(bits, ~0u);
    }
  });
}

}  // namespace llmtrain
