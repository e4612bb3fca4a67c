// Experts of a layer in one tensor, as Transformers 5 keeps them, compared with the same experts in tensors of their
// own.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "hf/export.hpp"
#include "hf/files.hpp"
#include "hf/model_files.hpp"
#include "hf/weights/fused_experts.hpp"
#include "hf/weights/load_weights.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::small_model;
using test::Started;
using testing::AllOf;
using testing::HasSubstr;

/// A mistake in the files.
struct Fault {
  bool up_first = false;              ///< rows of `up` lie before those of the gate
  int64_t experts = 0;                ///< more than the model has
  std::string also = {};              ///< further tensor
  std::string before = {};            ///< prefix of all names
  StoredType type = StoredType::F32;  ///< of all tensors
  int64_t file_bytes = int64_t{1} << 40;
};

/// Writes a model with fused experts, whose values are those of test::write_model.
void write_fused(const std::string& path, const ModelConfig& model, const Fault& fault = {}) {
  const DecoderShape shape = decoder_shape(model, model.vocab_size);
  const std::vector<UnitSpec> units = Decoder(shape).units();
  const ExpertsConfig& e = model.experts;
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::vector<float>> values;
  const auto add = [&](const std::string& name, std::vector<int64_t> dims, const std::vector<float>& more) {
    const std::string full = fault.before + name;
    tensors[full] = {full, fault.type, std::move(dims), 0, 0};
    values[full].insert(values[full].end(), more.begin(), more.end());
  };
  const auto elements = [&](const std::string& pattern, int64_t layer, int64_t expert) {
    std::vector<float> result;
    for (int64_t i = 0; i < e.d_ff * model.d_model; ++i) {
      result.push_back(test::element_of(at_layer(pattern, layer, expert) + ".weight", i));
    }
    return result;
  };
  const std::string experts_of = shape.names.expert_up.substr(0, shape.names.expert_up.rfind("{}"));
  for_each_slice(units, [&](const SlicePlace&, const ParamSpec& param, const ParamSlice& slice) {
    for (int64_t layer = 0; layer < model.n_layers; ++layer) {
      if (slice.name.starts_with(at_layer(experts_of, layer))) return;
    }
    std::string name = slice.name;
    const size_t router = name.find("block_sparse_moe.gate");
    if (router != std::string::npos) name.replace(router, 16, "mlp");
    add(name, stored_shape(param, slice), test::as_stored(param, slice, slice.transposed));
  });
  for (int64_t layer = 0; layer < model.n_layers; ++layer) {
    const std::string place = fmt::format("model.layers.{}.mlp.experts.", layer);
    for (int64_t expert = 0; expert < e.count + fault.experts; ++expert) {
      const int64_t all = e.count + fault.experts;
      std::vector<std::string> first = {shape.names.expert_gate, shape.names.expert_up};
      if (fault.up_first) std::swap(first[0], first[1]);
      for (const std::string& pattern : first) {
        add(place + "gate_up_proj", {all, 2 * e.d_ff, model.d_model}, elements(pattern, layer, expert));
      }
      add(place + "down_proj", {all, model.d_model, e.d_ff}, elements(shape.names.expert_down, layer, expert));
    }
  }
  if (!fault.also.empty()) add(fault.also, {1}, {1});
  ModelFolderPlan plan;
  plan.path = path;
  plan.overwrite = true;
  plan.file_bytes = fault.file_bytes;
  plan.texts["config.json"] = write_hf_config(model, {}, "float32");
  for (const auto& [name, tensor] : tensors) plan.tensors.push_back(tensor);
  ModelFolderWriter writer(std::move(plan));
  for (const auto& [name, all] : values) writer.write(name, 0, all.data(), std::ssize(all));
  writer.publish();
}

class FusedExperts : public testing::Test {
 public:
  FusedExperts() : folder_(test::shared_path("fused"), communicator().rank() == 0) { communicator().barrier(); }
  ~FusedExperts() override { communicator().barrier(); }

 protected:
  void write(const ModelConfig& model, const Fault& fault = {}) const {
    if (communicator().rank() == 0) write_fused(folder_.at("model"), model, fault);
    communicator().barrier();
  }
  LoadReport load(Started& started) const {
    return load_weights(folder_.at("model"), started.shape, started.store, communicator(), test::stream());
  }
  /// True on every rank if a store loaded from the files equals one whose parameters were set.
  bool equals_set(const ModelConfig& model, DType compute, int stage) const {
    Started loaded(model, compute, stage), expected(model, compute, stage);
    load(loaded);
    expected.set();
    int64_t equal[] = {loaded.bytes() == expected.bytes() ? 1 : 0};
    communicator().sum(equal);
    return equal[0] == communicator().size();
  }
  std::string refusal(const ModelConfig& model, const Fault& fault) const {
    write(model, fault);
    Started started(model, DType::f32, 3);
    std::string message = test::verdict(ExitCode::bad_content, [&] { load(started); });
    communicator().barrier();
    return message;
  }

  test::ScratchFolder folder_;
};

TEST_F(FusedExperts, HaveTheBitsOfTensorsOfTheirOwn) {
  for (const char* family : {"mixtral", "olmoe", "qwen2_moe", "qwen3_moe"}) {
    const ModelConfig model = small_model(family);
    for (const Fault& fault : {Fault{}, Fault{.before = "_orig_mod.", .type = StoredType::BF16, .file_bytes = 9000}}) {
      write(model, fault);
      for (int stage = 0; stage <= 3; ++stage) {
        EXPECT_TRUE(equals_set(model, stage % 2 == 0 ? DType::f32 : DType::bf16, stage)) << family << stage;
      }
    }
    write(model, {.up_first = true});
    EXPECT_FALSE(equals_set(model, DType::f32, 0)) << "the control";
  }
}

TEST_F(FusedExperts, OnlySomeLayersHaveExperts) {
  ModelConfig model = small_model("qwen3_moe");
  model.experts.dense_layers = {0};
  const auto fused_in = [&](int64_t layer) {
    WeightIndex index;
    index.folder = "model";
    const std::string place = fmt::format("model.layers.{}.mlp.experts.", layer);
    const int64_t bytes = 4 * model.experts.count * model.d_model * model.experts.d_ff;
    index.tensors.push_back({place + "down_proj",
                             StoredType::F32,
                             {model.experts.count, model.d_model, model.experts.d_ff},
                             100,
                             100 + bytes});
    split_fused_experts(index, decoder_shape(model, model.vocab_size));
    return index;
  };
  const WeightIndex split = fused_in(1);
  ASSERT_EQ(std::ssize(split.tensors), model.experts.count);
  EXPECT_EQ(split.tensors[1].name, "model.layers.1.mlp.experts.1.down_proj.weight");
  EXPECT_EQ(split.tensors[1].begin, 100 + 4 * model.d_model * model.experts.d_ff);
  EXPECT_EQ(split.tensors[1].end, split.tensors[2].begin);
  EXPECT_EQ(fused_in(0).tensors.front().name, "model.layers.0.mlp.experts.down_proj");
}

TEST_F(FusedExperts, AreRefusedByName) {
  const ModelConfig model = small_model("mixtral");
  EXPECT_THAT(refusal(model, {.experts = 1}),
              HasSubstr("model.layers.0.mlp.experts.gate_up_proj' is [4, 104, 36] instead of [3, 104, 36]"));
  EXPECT_THAT(refusal(model, {.also = "model.layers.1.block_sparse_moe.experts.0.w1.weight"}),
              AllOf(HasSubstr("not in the model: 'model.layers.1.mlp.experts.gate_up_proj'"),
                    HasSubstr("missing: model.layers.1.block_sparse_moe.experts.0.w3.weight")));
  EXPECT_THAT(refusal(model, {.also = "model.layers.1.mlp.experts.gate_up_proj_bias"}),
              HasSubstr("not in the model: 'model.layers.1.mlp.experts.gate_up_proj_bias'"));
}

// A rewritten folder has the published names, whatever its source has.
TEST_F(FusedExperts, AreWrittenUnderPublishedNames) {
  if (communicator().rank() != 0) return;
  for (const char* family : {"mixtral", "qwen2_moe"}) {
    const ModelConfig model = small_model(family);
    const auto rewritten = [&](const std::string& source) {
      ExportOptions options;
      options.output = folder_.at("out");
      options.overwrite = true;
      convert_model(folder_.at(source), options);
      return folder_.read("out/model.safetensors");
    };
    test::write_model(folder_.at("separate"), model, {});
    write_fused(folder_.at("fused"), model);
    EXPECT_EQ(rewritten("fused"), rewritten("separate"));
    write_fused(folder_.at("fused"), model, {.up_first = true});
    EXPECT_NE(rewritten("fused"), rewritten("separate")) << "the control";
  }
}

}  // namespace
}  // namespace llmtrain
