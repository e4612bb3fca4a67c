#include <fmt/format.h>

#include <algorithm>

#include "core/files/json_reader.hpp"
#include "hf/config/config_families.hpp"
#include "models/models.hpp"

namespace llmtrain {

namespace {

constexpr int64_t max_d_ff = int64_t{1} << 20;
constexpr double swiglu_alpha = 1.702;  ///< of swiglu_oai

/// Layers without experts. Transformers ignores numbers beyond the model's layers.
void read_dense_layers(ConfigKeys& keys, ModelConfig& c) {
  ExpertsConfig& e = c.experts;
  e.every = keys.integer("decoder_sparse_step", 1, 1, 4096);
  const nlohmann::json* listed = keys.value("mlp_only_layers");
  if (listed == nullptr) return;
  const auto is_number = [](const nlohmann::json& layer) { return layer.is_number_integer(); };
  if (!listed->is_array() || !std::ranges::all_of(*listed, is_number)) {
    return keys.problem("mlp_only_layers", "must be a list of layers, not " + printable_value(*listed));
  }
  const auto layers = listed->get<std::vector<int64_t>>();
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    if (std::ranges::find(layers, layer) != layers.end()) e.dense_layers.push_back(layer);
  }
}

void read_plain_experts(ConfigKeys& keys, ModelConfig& c) {
  const HuggingFaceExperts& hf = *family_entry(c.family).hugging_face.experts;
  ExpertsConfig& e = c.experts;
  const std::string_view other = hf.count == "num_experts" ? "num_local_experts" : "num_experts";
  const int64_t otherwise = keys.integer(other, hf.default_count, 1, max_experts);
  e.count = keys.integer(hf.count, otherwise, 1, max_experts);
  if (keys.has(other) && otherwise != e.count) {
    keys.problem(other, fmt::format("is {}, but must agree with {} = {}", otherwise, hf.count, e.count));
  }
  e.per_token = keys.integer("num_experts_per_tok", hf.default_per_token, 1, 1024);
  if (e.per_token > e.count) {
    keys.problem("num_experts_per_tok", fmt::format("{} is more than the {} experts", e.per_token, e.count));
  }
  e.d_ff = hf.d_ff == "intermediate_size" ? c.d_ff : keys.integer(hf.d_ff, hf.default_d_ff, 1, max_d_ff);
  e.d_ff_shared = 0;
  if (hf.default_d_ff_shared > 0) {
    e.d_ff_shared = keys.integer("shared_expert_intermediate_size", hf.default_d_ff_shared, 1, max_d_ff);
  }
  e.norm_topk = !hf.has_norm_topk || keys.boolean("norm_topk_prob", false);
  if (hf.has_biases) {
    keys.only("swiglu_alpha", swiglu_alpha, "another factor inside of the sigmoid is not supported");
    e.limit = keys.number("swiglu_limit", 7.0);
  }
  if (hf.has_dense_layers) read_dense_layers(keys, c);
  if (e.layers(c.n_layers) == 0) keys.problem("decoder_sparse_step", "no layer has experts");
  const double aux = keys.has("router_aux_loss_coef") && *keys.value("router_aux_loss_coef") == 0
                         ? 0
                         : keys.number("router_aux_loss_coef", hf.default_router_aux);
  c.router_aux = keys.boolean("output_router_logits", false) ? aux : 0;  // else Transformers leaves it out
  if (c.family == ModelConfig::Family::qwen2_moe) c.qkv_bias = keys.boolean("qkv_bias", true);
  if (c.family == ModelConfig::Family::mixtral) {
    keys.only("router_jitter_noise", 0.0, "noise on the input of routers is not supported");
  }
  if (c.family == ModelConfig::Family::olmoe) keys.only("clip_qkv", nullptr, "limits of queries are not supported");
  if (c.family == ModelConfig::Family::qwen3_moe) {
    keys.only("use_sliding_window", false, "windows of this family are not supported");
    keys.no_effect("sliding_window max_window_layers");
  }
}

}  // namespace

void read_experts(ConfigKeys& keys, ModelConfig& c) {
  c.latent.exist() ? read_deepseek_experts(keys, c) : read_plain_experts(keys, c);
  if (c.experts.count * c.n_layers <= max_experts_of_layers) return;
  keys.problem(family_entry(c.family).hugging_face.experts->count,
               fmt::format("{} experts in {} layers are more than {} in all", c.experts.count, c.n_layers,
                           max_experts_of_layers));
}

void write_experts(nlohmann::json& j, const ModelConfig& c) {
  if (family_entry(c.family).hugging_face.latent) return write_deepseek(j, c);
  const HuggingFaceExperts& hf = *family_entry(c.family).hugging_face.experts;
  const ExpertsConfig& e = c.experts;
  j[hf.count] = e.count;
  j["num_experts_per_tok"] = e.per_token;
  j[hf.d_ff] = e.d_ff;
  if (hf.default_d_ff_shared > 0) j["shared_expert_intermediate_size"] = e.d_ff_shared;
  if (hf.has_norm_topk) j["norm_topk_prob"] = e.norm_topk;
  if (hf.has_biases) {
    j["swiglu_alpha"] = swiglu_alpha;
    j["swiglu_limit"] = e.limit;
  }
  if (hf.has_dense_layers) {
    j["decoder_sparse_step"] = e.every;
    j["mlp_only_layers"] = e.dense_layers;
  }
  j["router_aux_loss_coef"] = c.router_aux > 0 ? c.router_aux : hf.default_router_aux;
  j["output_router_logits"] = false;
  if (c.family == ModelConfig::Family::qwen2_moe) j["qkv_bias"] = c.qkv_bias;
}

}  // namespace llmtrain
