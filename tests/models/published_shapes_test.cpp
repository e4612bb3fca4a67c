// Parameter counts of published models, from the units alone: nothing is allocated.

#include <gtest/gtest.h>

#include "models/models.hpp"

namespace llmtrain {
namespace {

using Family = ModelConfig::Family;

/// Sizes of a config.json; the family sets the rest.
struct Published {
  const char* name;
  Family family;
  int64_t d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocabulary;
  bool tied;
  int64_t parameters;
  int64_t max_seq_len = 1024;  ///< rows of GPT-2's positions
  int64_t d_ff_expert = 0;
};

const Published models[] = {
    {"gpt2", Family::gpt2, 768, 12, 12, 12, 64, 3072, 50257, true, 124'439'808},
    {"gpt2-medium", Family::gpt2, 1024, 24, 16, 16, 64, 4096, 50257, true, 354'823'168},
    {"gpt2-large", Family::gpt2, 1280, 36, 20, 20, 64, 5120, 50257, true, 774'030'080},
    {"gpt2-xl", Family::gpt2, 1600, 48, 25, 25, 64, 6400, 50257, true, 1'557'611'200},
    {"Llama-2-7B", Family::llama, 4096, 32, 32, 32, 128, 11008, 32000, false, 6'738'415'616},
    {"Llama-3.1-8B", Family::llama, 4096, 32, 32, 8, 128, 14336, 128256, false, 8'030'261'248},
    {"Llama-3.2-1B", Family::llama, 2048, 16, 32, 8, 64, 8192, 128256, true, 1'235'814'400},
    {"Llama-3.2-3B", Family::llama, 3072, 28, 24, 8, 128, 8192, 128256, true, 3'212'749'824},
    {"Mistral-7B-v0.1", Family::mistral, 4096, 32, 32, 8, 128, 14336, 32000, false, 7'241'732'096},
    {"Mistral-7B-v0.3", Family::mistral, 4096, 32, 32, 8, 128, 14336, 32768, false, 7'248'023'552},
    {"Qwen2.5-0.5B", Family::qwen2, 896, 24, 14, 2, 64, 4864, 151936, true, 494'032'768},
    {"Qwen2.5-1.5B", Family::qwen2, 1536, 28, 12, 2, 128, 8960, 151936, true, 1'543'714'304},
    {"Qwen2.5-7B", Family::qwen2, 3584, 28, 28, 4, 128, 18944, 152064, false, 7'615'616'512},
    {"Qwen3-0.6B", Family::qwen3, 1024, 28, 16, 8, 128, 3072, 151936, true, 596'049'920},
    {"Qwen3-8B", Family::qwen3, 4096, 36, 32, 8, 128, 12288, 151936, false, 8'190'735'360},
    {"gemma-2-2b", Family::gemma2, 2304, 26, 8, 4, 256, 9216, 256000, true, 2'614'341'888},
    {"gemma-2-9b", Family::gemma2, 3584, 42, 16, 8, 256, 14336, 256000, true, 9'241'705'984},
    {"Phi-3-mini", Family::phi3, 3072, 32, 32, 32, 96, 8192, 32064, false, 3'821'079'552},
    {"Phi-4-mini", Family::phi3, 3072, 32, 24, 8, 128, 8192, 200064, true, 3'836'021'760},
    {"Mixtral-8x7B", Family::mixtral, 4096, 32, 32, 8, 128, 14336, 32000, false, 46'702'792'704, 1024, 14336},
    {"Qwen1.5-MoE-A2.7B", Family::qwen2_moe, 2048, 24, 16, 16, 128, 5632, 151936, false, 14'315'784'192, 1024, 1408},
    {"Qwen3-30B-A3B", Family::qwen3_moe, 2048, 48, 32, 4, 128, 6144, 151936, false, 30'532'122'624, 1024, 768},
    {"OLMoE-1B-7B", Family::olmoe, 2048, 16, 16, 16, 128, 1024, 50304, false, 6'919'161'856, 1024, 1024},
    {"Phi-4", Family::phi3, 5120, 40, 40, 10, 128, 17920, 100352, false, 14'659'507'200},
    {"starcoder2-3b", Family::starcoder2, 3072, 30, 24, 2, 128, 12288, 49152, true, 3'030'371'328},
    {"granite-3.1-2b", Family::granite, 2048, 40, 32, 8, 64, 8192, 49155, true, 2'533'531'648},
    {"SmolLM3-3B", Family::smollm3, 2048, 36, 16, 4, 128, 11008, 128256, true, 3'075'098'624},
    {"OLMo-2-7B", Family::olmo2, 4096, 32, 32, 32, 128, 11008, 100352, false, 7'298'617'344},
    {"pythia-160m", Family::gpt_neox, 768, 12, 12, 12, 64, 3072, 50304, false, 162'322'944},
    {"falcon-7b", Family::falcon, 4544, 32, 71, 1, 64, 18176, 65024, true, 6'921'720'704},
    {"falcon-40b", Family::falcon, 8192, 60, 128, 8, 64, 32768, 65024, true, 41'303'293'952},
    {"gemma-3-1b", Family::gemma3, 1152, 26, 4, 1, 256, 6912, 262144, true, 999'885'952},
    {"gpt-oss-20b", Family::gpt_oss, 2880, 24, 64, 8, 64, 2880, 201088, false, 20'914'757'184, 1024, 2880},
};

ModelConfig config_of(const Published& p) {
  ModelConfig c;
  c.family = p.family;
  c.d_model = p.d_model;
  c.n_layers = p.n_layers;
  family_entry(p.family).defaults(c);
  c.n_heads = p.n_heads;
  c.n_kv_heads = p.n_kv_heads;
  c.head_dim = p.head_dim;
  c.d_ff = p.d_ff;
  c.experts.d_ff = p.d_ff_expert;
  if (c.experts.d_ff_shared > 0) c.experts.d_ff_shared = p.d_ff;
  if (p.n_kv_heads > 1) c.shared_norm = false;  // of large Falcons
  c.vocab_size = p.vocabulary;
  c.max_seq_len = p.max_seq_len;
  c.tie_embeddings = p.tied;
  return c;
}

int64_t parameters_of(const ModelConfig& config) {
  int64_t count = 0;
  for (const UnitSpec& unit : make_model(config, config.vocab_size)->units()) {
    for (const ParamSpec& param : unit.params) count += param.numel();
  }
  return count;
}

TEST(PublishedShapes, HaveTheirNumberOfParameters) {
  for (const Published& p : models) EXPECT_EQ(parameters_of(config_of(p)), p.parameters) << p.name;
}

TEST(PublishedShapes, EveryPartCounts) {
  for (const Published& p : models) {
    ModelConfig c = config_of(p);
    c.tie_embeddings = !c.tie_embeddings;
    EXPECT_NE(parameters_of(c), p.parameters) << p.name;
    c = config_of(p);
    c.qk_norm = !c.qk_norm;
    const bool whole = p.family == Family::olmoe || p.family == Family::olmo2;
    const int64_t norms = whole ? (p.n_heads + p.n_kv_heads) * p.head_dim : 2 * p.head_dim;
    EXPECT_EQ(std::abs(parameters_of(c) - p.parameters), p.n_layers * norms) << p.name;
    c = config_of(p);
    c.qkv_bias = !c.qkv_bias;
    EXPECT_EQ(std::abs(parameters_of(c) - p.parameters), p.n_layers * (p.n_heads + 2 * p.n_kv_heads) * p.head_dim)
        << p.name;
  }
}

TEST(PublishedShapes, SlicesCoverTheirParameters) {
  for (const Published& p : models) {
    for (const UnitSpec& unit : make_model(config_of(p), p.vocabulary)->units()) {
      for (const ParamSpec& param : unit.params) {
        int64_t row = 0;
        for (const ParamSlice& slice : param.slices) {
          EXPECT_EQ(slice.first_row, row) << slice.name;
          row += slice.rows;
          const bool conv1d = p.family == Family::gpt2 && slice.name.find(".c_") != std::string::npos;
          EXPECT_EQ(slice.transposed, conv1d && param.columns > 1) << slice.name;
        }
        EXPECT_EQ(row, param.rows) << param.name;
      }
    }
  }
}

}  // namespace
}  // namespace llmtrain
