#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "hf/config/config_families.hpp"
#include "models/models.hpp"

namespace llmtrain {

namespace {

constexpr int64_t widest = int64_t{1} << 18, widest_mlp = int64_t{1} << 20;
constexpr std::string_view greedy = "greedy", greedy_of_groups = "group_limited_greedy";

bool is_v3(const ModelConfig& c) { return c.family == ModelConfig::Family::deepseek_v3; }

void read_groups(ConfigKeys& keys, ExpertsConfig& e, bool v3) {
  e.groups = e.groups_per_token = 1;
  if (v3) {
    keys.only("topk_method", "noaux_tc", "another choice of experts is not supported");
  } else {
    const std::string method = keys.text("topk_method", std::string(greedy));
    if (method == greedy) return keys.no_effect("n_group topk_group");
    if (method != greedy_of_groups) {
      keys.problem("topk_method", fmt::format("must be {} or {}", greedy, greedy_of_groups));
    }
  }
  const auto groups = [&](std::string_view key, int64_t otherwise) {
    return keys.integer(key, keys.has_key(key) ? 1 : otherwise, 1, max_expert_groups);
  };
  e.groups = groups("n_group", v3 ? 8 : 1);
  e.groups_per_token = groups("topk_group", v3 ? 4 : 1);
  if (e.count % e.groups != 0) {
    keys.problem("n_group", fmt::format("{} groups do not divide {} experts", e.groups, e.count));
    e.groups = 1;
  }
  if (e.groups_per_token > e.groups) {
    keys.problem("topk_group", fmt::format("{} is more than the {} groups", e.groups_per_token, e.groups));
  }
}

}  // namespace

void read_latent(ConfigKeys& keys, ModelConfig& c) {
  LatentConfig& l = c.latent;
  l.query_rank = keys.integer("q_lora_rank", keys.has_key("q_lora_rank") ? 0 : 1536, 1, widest);
  l.rank = keys.integer("kv_lora_rank", 512, 1, widest);
  l.plain = keys.integer("qk_nope_head_dim", 128, 1, widest);
  l.rotated = keys.integer("qk_rope_head_dim", 64, 1, widest);
  l.value = keys.integer("v_head_dim", 128, 1, widest);
  l.interleaved = true;
  if (is_v3(c)) {
    l.interleaved = keys.boolean("rope_interleave", true);
  } else {
    keys.no_effect_as("rope_interleave", true);
    keys.only("mlp_bias", false, "biases of experts are not supported");
  }
  c.head_dim = l.head_dim();
  keys.no_effect("head_dim qk_head_dim");  // Transformers writes qk_rope_head_dim as the first, and their sum
  keys.only("attention_bias", false, "biases of latent attention are not supported");
  if (c.n_kv_heads != c.n_heads) {
    keys.problem(
        "num_key_value_heads",
        fmt::format("is {}, but every head of latent attention has its own keys: must be {}", c.n_kv_heads, c.n_heads));
  }
  if (l.value > c.head_dim) {
    keys.problem("v_head_dim", fmt::format("values of {} elements are wider than queries of {}, which is not supported",
                                           l.value, c.head_dim));
  }
}

void read_deepseek_experts(ConfigKeys& keys, ModelConfig& c) {
  const bool v3 = is_v3(c);
  ExpertsConfig& e = c.experts;
  const HuggingFaceExperts& hf = *family_entry(c.family).hugging_face.experts;
  e.count = keys.integer(hf.count, hf.default_count, 1, max_experts);
  e.per_token = keys.integer("num_experts_per_tok", hf.default_per_token, 1, 1024);
  e.d_ff = keys.integer(hf.d_ff, hf.default_d_ff, 1, widest_mlp);
  e.d_ff_shared = e.d_ff * keys.integer("n_shared_experts", v3 ? 1 : 2, 0, 1024);
  e.dense_layers.resize(static_cast<size_t>(keys.integer("first_k_dense_replace", v3 ? 3 : 0, 0, 4096)));
  std::iota(e.dense_layers.begin(), e.dense_layers.end(), 0);
  e.scale = keys.number("routed_scaling_factor", v3 ? 2.5 : 1.0);
  e.norm_topk = v3 && keys.boolean("norm_topk_prob", !keys.has_key("norm_topk_prob"));  // null is false
  if (!v3) keys.no_effect_as("norm_topk_prob", false);
  e.score = v3 ? ExpertsConfig::Score::sigmoid : ExpertsConfig::Score::softmax;
  keys.only("scoring_func", v3 ? "sigmoid" : "softmax", "other scores of experts are not supported in this family");
  keys.only("moe_layer_freq", 1, "dense layers between those with experts are not supported");
  read_groups(keys, e, v3);
  const int64_t choices = e.count / e.groups * std::min(e.groups, e.groups_per_token);
  if (e.per_token > choices) {
    keys.problem("num_experts_per_tok",
                 fmt::format("{} is more than the {} experts to choose from", e.per_token, choices));
  }
  if (e.layers(c.n_layers) == 0) keys.problem("first_k_dense_replace", "no layer has experts");
  c.router_aux = 0;  // which Transformers does not compute
  keys.no_effect("aux_loss_alpha seq_aux ep_size num_nextn_predict_layers output_router_logits router_aux_loss_coef");
}

void write_deepseek(nlohmann::json& j, const ModelConfig& c) {
  const LatentConfig& l = c.latent;
  const ExpertsConfig& e = c.experts;
  const HuggingFaceExperts& hf = *family_entry(c.family).hugging_face.experts;
  const auto or_null = [](int64_t value, int64_t absent) {
    return value == absent ? nlohmann::json() : nlohmann::json(value);
  };
  j["head_dim"] = l.rotated;  // as Transformers writes it
  j["q_lora_rank"] = or_null(l.query_rank, 0);
  j["kv_lora_rank"] = l.rank;
  j["qk_nope_head_dim"] = l.plain;
  j["qk_rope_head_dim"] = l.rotated;
  j["v_head_dim"] = l.value;
  j["attention_bias"] = false;
  j[hf.count] = e.count;
  j["num_experts_per_tok"] = e.per_token;
  j[hf.d_ff] = e.d_ff;
  j["n_shared_experts"] = e.d_ff > 0 ? e.d_ff_shared / e.d_ff : 0;
  j["first_k_dense_replace"] = e.dense_layers.size();
  j["routed_scaling_factor"] = e.scale;
  j["norm_topk_prob"] = e.norm_topk;
  if (is_v3(c)) {
    j["rope_interleave"] = l.interleaved;
    j["n_group"] = e.groups;
    j["topk_group"] = e.groups_per_token;
  } else {
    j["topk_method"] = e.groups > 1 ? greedy_of_groups : greedy;
    j["n_group"] = or_null(e.groups, 1);
    j["topk_group"] = or_null(e.groups_per_token, 1);
  }
}

}  // namespace llmtrain
