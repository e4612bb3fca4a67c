// Inverse frequencies of rope: theta^(-2i/R), and each kind of scaling.

#include "models/rope/rope_frequencies.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llmtrain {

namespace {

/// theta^(-2i/R)
std::vector<double> plain_frequencies(double theta, int64_t rotary_dim) {
  std::vector<double> inverse(static_cast<size_t>(rotary_dim / 2));
  for (size_t i = 0; i < inverse.size(); ++i) {
    inverse[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
  }
  return inverse;
}

/// Llama 3.1: long wavelengths are stretched by the factor, short ones kept, with a ramp between.
void scale_llama3(std::vector<double>& inverse, const RopeScaling& s) {
  const auto original = static_cast<double>(s.original_max_position_embeddings);
  for (double& f : inverse) {
    const double turns = original * f / (2 * std::numbers::pi);  // rotations over the original length
    const double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    const double share = std::clamp(kept, 0.0, 1.0);
    f = (1 - share) * f / s.factor + share * f;
  }
}

/// YaRN (Peng et al. 2023, section 3.2): a ramp over the index of the frequency, between those that make beta_fast and
/// beta_slow rotations over the original length.
void scale_yarn(std::vector<double>& inverse, const RopeScaling& s, double factor, double theta) {
  const double dims = 2 * static_cast<double>(inverse.size());
  const auto original = static_cast<double>(s.original_max_position_embeddings);
  const auto index_of = [&](double turns) {
    return dims * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = index_of(s.beta_fast), high = index_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inverse[i] = inverse[i] / factor * stretched + inverse[i] * (1 - stretched);
  }
}

double yarn_attention_factor(const RopeScaling& s, double factor) {
  const auto of = [factor](double scale) { return yarn_attention_scale(scale, factor); };
  return s.mscale > 0 && s.mscale_all_dim > 0 ? of(s.mscale) / of(s.mscale_all_dim) : of(1);
}

/// LongRoPE (Ding et al. 2024) as in Phi-3.
double longrope_attention_factor(const RopeScaling& s, double factor) {
  if (factor <= 1) return 1;
  return std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(s.original_max_position_embeddings)));
}

}  // namespace

double yarn_attention_scale(double scale, double factor) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1;
}

double yarn_factor(const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  return s.factor > 0 || s.original_max_position_embeddings == 0
             ? s.factor
             : static_cast<double>(c.max_seq_len) / static_cast<double>(s.original_max_position_embeddings);
}

Rope make_rope(const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  const double factor = yarn_factor(c);
  Rope rope;
  rope.frequencies = plain_frequencies(c.rope_theta, c.rotary_dim());
  switch (s.kind) {
    case RopeScaling::Kind::none:
      break;
    case RopeScaling::Kind::linear:
      for (double& f : rope.frequencies) f /= factor;
      break;
    case RopeScaling::Kind::dynamic:
      rope.long_frequencies = rope.frequencies;
      rope.limit = c.max_seq_len;
      rope.ntk_factor = factor;
      break;
    case RopeScaling::Kind::llama3:
      scale_llama3(rope.frequencies, s);
      break;
    case RopeScaling::Kind::yarn:
      scale_yarn(rope.frequencies, s, factor, c.rope_theta);
      rope.factor = s.attention_factor > 0 ? s.attention_factor : yarn_attention_factor(s, factor);
      break;
    case RopeScaling::Kind::longrope:
      LLMTRAIN_CHECK(s.problem(c.rotary_dim() / 2).empty(), s.problem(c.rotary_dim() / 2));
      rope.long_frequencies = rope.frequencies;
      for (size_t i = 0; i < rope.frequencies.size(); ++i) {
        rope.frequencies[i] /= s.short_factor[i];
        rope.long_frequencies[i] /= s.long_factor[i];
      }
      rope.limit = s.original_max_position_embeddings;
      rope.factor = s.attention_factor > 0 ? s.attention_factor : longrope_attention_factor(s, factor);
      break;
  }
  return rope;
}

Rope make_local_rope(const ModelConfig& c) {
  Rope rope;
  rope.frequencies = plain_frequencies(c.rope_local_theta, c.rotary_dim());
  return rope;
}

}  // namespace llmtrain
