#pragma once
// Small models of every family whose heads and channels four blocks can share, with random parameters.

#include <cmath>
#include <random>

#include "models/lora_golden.hpp"

namespace llmtrain::test {

inline ModelConfig splittable(ModelConfig::Family family) {
  ModelConfig c;
  c.family = family;
  c.vocab_size = 41;  // the last of four blocks is shorter
  c.d_model = 24;
  c.n_layers = 2;
  c.n_heads = 8;
  c.n_kv_heads = 4;
  c.head_dim = 6;
  c.max_seq_len = 64;
  family_entry(family).defaults(c);
  if (family == ModelConfig::Family::gpt2 || family == ModelConfig::Family::gpt_neox) c.n_kv_heads = 8;
  if (family == ModelConfig::Family::gpt_neox) c.partial_rotary_factor = 2.0 / 3;  // 4 of 6 elements
  c.d_ff = 36;
  return c;
}

/// Shape with 39 tokens.
inline DecoderShape splittable_shape(ModelConfig::Family family) { return decoder_shape(splittable(family), 39); }

inline void adapt_all(DecoderShape& shape, const AdapterShape& adapter) {
  shape.adapters = [adapter](const std::string&) { return std::optional(adapter); };
  shape.trained = [](const std::string& name) { return name.ends_with(".bias"); };
  if (adapter.dora) {
    shape.adapters = [adapter, table = shape.names.embedding,
                      places = shape.names.positions](const std::string& module) {
      return module == table || module == places ? std::nullopt : std::optional(adapter);
    };
  }
}

/// Values of every parameter of the shape without blocks; those of norms and magnitudes are near 1.
inline Parameters random_values(DecoderShape shape) {
  std::mt19937_64 generator(3);
  std::normal_distribution<float> normal(0, 0.2f);
  shape.tensor = {};
  Parameters values;
  for (const UnitSpec& unit : Decoder(shape).units()) {
    for (const ParamSpec& param : unit.params) {
      const float mean = param.columns == 1 && !param.name.ends_with(".bias") && !param.name.ends_with("lora_B.weight");
      for (const ParamSlice& slice : param.slices) {
        for (int64_t i = 0; i < slice.rows * param.columns; ++i) values[slice.name].push_back(mean + normal(generator));
      }
    }
  }
  return values;
}

inline Rows random_rows(int64_t tokens) {
  std::mt19937 generator(7);
  Rows rows;
  rows.segments = {0};
  for (const int32_t length : {19, 14}) {
    for (int32_t i = 0; i < length; ++i) {
      rows.ids.push_back(static_cast<int32_t>(generator() % static_cast<uint32_t>(tokens)));
      rows.targets.push_back(static_cast<int32_t>(generator() % static_cast<uint32_t>(tokens)));
      if (generator() % 6 == 0) rows.targets.back() = ignore_target;
      rows.positions.push_back(i);
    }
    rows.segments.push_back(rows.segments.back() + length);
  }
  return rows;
}

/// |a - b| / |b| over all parameters together, L2 norms.
inline double distance(const Parameters& a, const Parameters& b) {
  double difference = 0, size = 0;
  for (const auto& [name, values] : b) {
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{a.at(name).at(i)} - double{values[i]}, 2);
      size += std::pow(double{values[i]}, 2);
    }
  }
  return std::sqrt(difference / size);
}

inline constexpr std::array all_families = {
    ModelConfig::Family::gpt2,     ModelConfig::Family::llama,  ModelConfig::Family::mistral,
    ModelConfig::Family::qwen2,    ModelConfig::Family::qwen3,  ModelConfig::Family::phi3,
    ModelConfig::Family::gemma2,   ModelConfig::Family::gemma3, ModelConfig::Family::granite,
    ModelConfig::Family::gpt_neox, ModelConfig::Family::falcon};

/// Shapes whose blocks need sums over all of them before they go on: norms over all heads, and latent attention, whose
/// queries are latent or not.
inline std::vector<DecoderShape> shapes_in_phases() {
  ModelConfig whole = splittable(ModelConfig::Family::qwen3);
  whole.qk_norm_whole = true;
  ModelConfig latent = splittable(ModelConfig::Family::deepseek_v2);
  latent.experts = {};
  latent.n_kv_heads = latent.n_heads;
  latent.latent = {.query_rank = 0, .rank = 12, .plain = 4, .rotated = 2, .value = 5};
  ModelConfig queries = latent;
  queries.latent.query_rank = 10;
  return {decoder_shape(whole, 39), decoder_shape(latent, 39), decoder_shape(queries, 39)};
}

}  // namespace llmtrain::test
