// Weights of files in stores of every stage, dtype and number of ranks, compared with the same values set by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "hf/files.hpp"
#include "hf/model_files.hpp"
#include "hf/weights/load_weights.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::small_model;
using test::Started;
using test::Stored;
using test::stream;
using testing::AllOf;
using testing::HasSubstr;

class LoadWeights : public testing::Test {
 public:
  LoadWeights() : folder_(test::shared_path("load"), communicator().rank() == 0) { communicator().barrier(); }
  ~LoadWeights() override { communicator().barrier(); }

 protected:
  void write(const ModelConfig& model, const Stored& stored) const {
    if (communicator().rank() == 0) test::write_model(folder_.at("model"), model, stored);
    communicator().barrier();
  }
  LoadReport load(Started& started) const {
    return load_weights(folder_.at("model"), started.shape, started.store, communicator(), stream());
  }
  /// Returns true if a store loaded from the files equals one whose parameters were set.
  bool equals_set(const ModelConfig& model, DType compute, int stage, LoadReport* report = nullptr) const {
    Started loaded(model, compute, stage), expected(model, compute, stage);
    const LoadReport r = load(loaded);
    if (report != nullptr) *report = r;
    expected.set();
    return loaded.bytes() == expected.bytes();
  }
  std::string refusal(const ModelConfig& model) const {
    Started started(model, DType::f32, 3);
    std::string message = test::verdict(ExitCode::bad_content, [&] { load(started); });
    communicator().barrier();
    return message;
  }

  test::ScratchFolder folder_;
};

class LoadWeightsOf : public LoadWeights, public testing::WithParamInterface<const char*> {};

TEST_P(LoadWeightsOf, EveryStageAndDtypeHoldsTheBitsOfTheFile) {
  const ModelConfig model = small_model(GetParam());
  for (const Stored& stored :
       {Stored{}, Stored{.type = StoredType::BF16, .file_bytes = 9000}, Stored{.type = StoredType::F16}}) {
    write(model, stored);
    for (const DType compute : {DType::f32, DType::bf16}) {
      for (int stage = 0; stage <= 3; ++stage) {
        EXPECT_TRUE(equals_set(model, compute, stage))
            << GetParam() << ", " << name_of(stored.type) << ", stage " << stage << ", " << name_of(compute);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, LoadWeightsOf,
                         testing::Values("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "mixtral",
                                         "olmoe", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss",
                                         "starcoder2", "granite", "smollm3", "olmo2", "gpt_neox", "falcon",
                                         "gemma3_text"));

// Errors that must be detected.
TEST_F(LoadWeights, AnotherOrientationOfASquareMatrixShows) {
  const ModelConfig model = small_model("gpt2");
  write(model, {.transposed_wrongly = "transformer.h.1.attn.c_proj.weight"});
  int64_t equal[] = {equals_set(model, DType::f32, 3) ? 1 : 0};
  communicator().sum(equal);
  EXPECT_LT(equal[0], communicator().size());
}

TEST_F(LoadWeights, NoRankReadsMoreThanItsShare) {
  const ModelConfig model = small_model("llama");
  write(model, {});
  int64_t parameters = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    LoadReport report;
    EXPECT_TRUE(equals_set(model, DType::bf16, stage, &report));
    if (parameters == 0) parameters = Started(model, DType::f32, 0).store.units().parameters();
    EXPECT_EQ(report.bytes, 4 * parameters) << "of all ranks together, at stage " << stage;
    EXPECT_THAT(load_text(report), HasSubstr("GB/s"));
  }
}

TEST_F(LoadWeights, WhatOtherProgramsWriteAlongIsNoted) {
  for (const bool prefix : {true, false}) {
    const ModelConfig model = small_model("gpt2");
    write(model, {.prefix = prefix, .extras = true});
    LoadReport report;
    EXPECT_TRUE(equals_set(model, DType::f32, 2, &report));
    EXPECT_THAT(load_text(report), AllOf(HasSubstr("1 attention masks"), HasSubstr("1 rope tables")));
    EXPECT_EQ(load_text(report).find("names without 'transformer.'") == std::string::npos, prefix);
  }
  const ModelConfig gemma = small_model("gemma2");
  write(gemma, {.extras = true});
  EXPECT_TRUE(equals_set(gemma, DType::f32, 2));
  ModelConfig deepseek = small_model("deepseek_v3");
  write(deepseek, {.extras = true});
  LoadReport report;
  EXPECT_TRUE(equals_set(deepseek, DType::f32, 2, &report));
  EXPECT_THAT(load_text(report), HasSubstr("2 tensors of layers that predict further tokens"));
  deepseek.n_layers = 1;
  EXPECT_THAT(refusal(deepseek), HasSubstr("not in the model")) << "control: another layer";
}

// safetensors.torch.save_model writes only the first name of the pair.
TEST_F(LoadWeights, OfATiedPairEitherNameDoes) {
  for (const char* family : {"gpt2", "gemma2"}) {
    const ModelConfig model = small_model(family);
    for (const Stored& stored :
         {Stored{.head_alone = true}, Stored{.before = "_orig_mod.", .head_alone = true},
          Stored{.file_bytes = 3000, .before = "module.", .head_alone = true, .prefix = false}}) {
      write(model, stored);
      LoadReport report;
      EXPECT_TRUE(equals_set(model, DType::f32, 2, &report)) << family;
      EXPECT_THAT(load_text(report), HasSubstr("the tied embedding is stored as lm_head.weight"));
    }
    ModelConfig untied = model;
    untied.tie_embeddings = false;
    EXPECT_THAT(refusal(untied), HasSubstr("config.json must set tie_word_embeddings: true"));
  }
}

TEST_F(LoadWeights, MissingAndForeignTensorsAreNamed) {
  const ModelConfig model = small_model("llama");
  write(model, {.left_out = "model.layers.1.mlp.up_proj.weight"});
  EXPECT_THAT(refusal(model), HasSubstr("missing: model.layers.1.mlp.up_proj.weight"));
  EXPECT_THAT(refusal(small_model("qwen2")), AllOf(HasSubstr("missing: model.layers.0.self_attn.q_proj.bias"),
                                                   HasSubstr("model.layers.1.mlp.up_proj.weight")));
  write(small_model("qwen2"), {});
  EXPECT_THAT(refusal(model), HasSubstr("not in the model: 'model.layers.0.self_attn.k_proj.bias'"));
  ModelConfig other = model;
  other.d_ff = 51;
  write(other, {});
  EXPECT_THAT(refusal(model), HasSubstr("model.layers.0.mlp.gate_proj.weight is [51, 36] instead of [52, 36]"));
  other = model;
  other.tie_embeddings = true;
  write(model, {});
  EXPECT_THAT(refusal(other), HasSubstr("lm_head.weight differs from model.embed_tokens.weight"));
  EXPECT_TRUE(equals_set(model, DType::f32, 1));
}

TEST_F(LoadWeights, AValueThatIsNotFiniteIsNamed) {
  const std::map<std::string, std::string> names = {
      {"mixtral", "model.layers.1.block_sparse_moe.experts.2.w1.weight"},
      {"gpt_oss", "model.layers.1.mlp.experts.2.down_proj.weight"},  // part of a tensor of all experts
      {"gpt2", "transformer.h.1.mlp.c_proj.weight"}};                // stored transposed
  for (const StoredType type : {StoredType::F32, StoredType::BF16, StoredType::F16}) {
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      for (const auto& [family, name] : names) {
        const ModelConfig model = small_model(family);
        write(model, {.type = type, .not_finite = name, .last = value});
        EXPECT_THAT(refusal(model), HasSubstr("model.safetensors: '" + name + "' has a value that is not finite"))
            << name_of(type) << value;
      }
    }
  }
}

TEST_F(LoadWeights, AFileThatIsCutOffEndsOnEveryRank) {
  const ModelConfig model = small_model("llama");
  write(model, {});
  if (communicator().rank() == 0) {
    std::filesystem::resize_file(folder_.at("model") + "/model.safetensors", 20000);
  }
  communicator().barrier();
  EXPECT_THAT(refusal(model), HasSubstr("cut off or damaged"));
  if (communicator().rank() == 0) std::filesystem::remove(folder_.at("model") + "/model.safetensors");
  communicator().barrier();
  Started started(model, DType::f32, 1);
  EXPECT_NE(test::verdict(ExitCode::missing_input, [&] { load(started); }), "accepted");
}

}  // namespace
}  // namespace llmtrain
