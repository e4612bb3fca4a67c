// Weights of files in split matrices and back, on every mesh of tensor ranks: the model is the one without blocks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/split_model.hpp"
#include "hf/export.hpp"
#include "hf/files.hpp"
#include "hf/model_files.hpp"
#include "hf/quantized/quantize_model.hpp"
#include "hf/weights/load_weights.hpp"
#include "parallel/mesh.hpp"
#include "params/planned_memory.hpp"
#include "params/whole_units.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::Division;
using test::small_model;
using test::Stored;
using test::stream;

/// Divides a model as its layers are: matrices that write to the residual stream by columns.
Division division_of(const ParamSpec& param) {
  const std::string& name = param.slices.front().name;
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  const bool output = has("o_proj") || has("down_proj") || has("c_proj");
  if (!param.decay)
    return has("c_attn") ? Division::thirds : has("q_proj") || has("c_fc") ? Division::rows : Division::none;
  if (has("wpe")) return Division::none;
  if (has("c_attn")) return Division::thirds;
  return output ? Division::columns : Division::rows;
}

/// The store of a mesh.
struct Split {
  Split(const DecoderShape& of, const std::vector<UnitSpec>& whole, int64_t tensor, int64_t blocks, int stage,
        DType compute = DType::f32)
      : shape(of), mesh(communicator(), {tensor, 1}) {
    test::StoreLayout layout{.stage = stage, .compute = compute};
    ParamStoreOptions options = test::store_options(mesh.parameters(), layout, 1, master_and_moments());
    options.tensor_rank = static_cast<int>(mesh.tensor_rank());
    options.tensor_size = static_cast<int>(tensor);
    options.tensor_blocks = blocks;
    options.model_units = split_units(whole, {blocks, 0, blocks}, division_of);
    store.emplace(split_units(whole, options.tensor_share(), division_of), options);
    store->plan(arena);
    memory.emplace(arena, mesh.parameters());
    store->start(mesh.parameters(), stream(), &mesh.job());
  }
  LoadReport load(const std::string& folder) {
    const NameSet none;
    return load_weights(folder, shape, *store, communicator(), stream(), {.trained = &none});
  }
  std::map<std::string, std::vector<float>> tensors() { return test::external_tensors(*store); }

  DecoderShape shape;
  Mesh mesh;
  Arena arena;
  std::optional<PlannedMemory> memory;
  std::optional<ParamStore> store;
};

class SplitWeights : public testing::Test {
 public:
  SplitWeights() : folder_(test::shared_path("split"), communicator().rank() == 0) { communicator().barrier(); }
  ~SplitWeights() override { communicator().barrier(); }

 protected:
  void write(const ModelConfig& model, const Stored& stored) const {
    if (communicator().rank() == 0) test::write_model(folder_.at("model"), model, stored);
    communicator().barrier();
  }
  /// Calls visit(tensor, blocks, stage) for meshes of these ranks.
  static void each_mesh(const auto& visit) {
    int stage = 0;
    for (const int64_t blocks : {2, 4}) {
      for (const int64_t tensor : {1, 2, 4}) {
        if (blocks % tensor == 0 && communicator().size() % tensor == 0) visit(tensor, blocks, stage++ % 4);
      }
    }
  }

  test::ScratchFolder folder_;
};

TEST_F(SplitWeights, HaveTheValuesAndTheHashOfTheFiles) {
  for (const char* family : {"gpt2", "llama", "qwen2", "phi3", "mixtral"}) {
    ModelConfig model = small_model(family);
    if (model.experts.exist()) model.experts.count = 4;  // of which a rank has some
    for (const Stored& stored : {Stored{}, Stored{.type = StoredType::BF16, .file_bytes = 9000}}) {
      write(model, stored);
      const DecoderShape shape = decoder_shape(model, model.vocab_size);
      Split whole(shape, Decoder(shape).units(), 1, 1, 1);
      const LoadReport expected = whole.load(folder_.at("model"));
      each_mesh([&](int64_t tensor, int64_t blocks, int stage) {
        const DType compute = stage % 2 == 0 ? DType::f32 : DType::bf16;
        Split split(shape, Decoder(shape).units(), tensor, blocks, stage, compute);
        const LoadReport report = split.load(folder_.at("model"));
        EXPECT_EQ(split.tensors(), whole.tensors()) << family << ", tensor " << tensor << ", blocks " << blocks;
        EXPECT_EQ(report.hash, expected.hash);
        EXPECT_EQ(report.notes, expected.notes);
        Split frozen_one(shape, frozen(Decoder(shape).units()), tensor, blocks, stage, DType::bf16);
        EXPECT_EQ(frozen_one.load(folder_.at("model")).hash, expected.hash);
        EXPECT_EQ(frozen_one.tensors(), whole.tensors());  // the values are exact in bf16
      });
      auto changed = whole.tensors();
      changed.begin()->second.front() += 1;
      EXPECT_NE(changed, whole.tensors()) << "control";
    }
  }
}

TEST_F(SplitWeights, AreExportedAsTheFilesThatTheyCameFrom) {
  for (const char* family : {"gpt2", "llama", "phi3"}) {
    const ModelConfig model = small_model(family);
    const Stored stored{.type = StoredType::BF16, .file_bytes = 9000};
    write(model, stored);
    const DecoderShape shape = decoder_shape(model, model.vocab_size);
    each_mesh([&](int64_t tensor, int64_t blocks, int stage) {
      Split split(shape, Decoder(shape).units(), tensor, blocks, stage);
      split.load(folder_.at("model"));
      WholeUnits whole(
          Decoder(shape).units(), blocks_of_units(split.store->units().model_units()),
          [&](int unit, int64_t begin, int64_t end, float* out) { split.store->gather_range(unit, begin, end, out); });
      const GatherWeights gather = [&](int unit, int64_t begin, int64_t end, float* out) {
        whole.read(unit, begin, end, out);
      };
      export_model({.output = folder_.at("out"),
                    .overwrite = true,
                    .type = stored.type,
                    .file_bytes = stored.file_bytes,
                    .texts = {},
                    .ids = {},
                    .save_tokenizer = {}},
                   shape, whole.units(), gather, communicator());
      communicator().barrier();
      if (communicator().rank() != 0) return;
      int64_t files = 0;
      for (const auto& entry : std::filesystem::directory_iterator(folder_.at("model"))) {
        const std::string name = entry.path().filename().string();
        if (!name.ends_with(".safetensors")) continue;
        ++files;
        EXPECT_TRUE(folder_.read("model/" + name) == folder_.read("out/" + name)) << family << ", " << name;
      }
      EXPECT_GT(files, 1);
    });
  }
}

/// Rows that the files lack are the mean of the others, in whatever block they lie.
TEST_F(SplitWeights, GetTheRowsOfNewTokens) {
  const ModelConfig model = small_model("llama");
  write(model, {});
  ModelConfig larger = model;
  larger.vocab_size = model.vocab_size + 19;
  DecoderShape shape = decoder_shape(larger, larger.vocab_size);
  shape.stored_rows = model.vocab_size;
  Split whole(shape, Decoder(shape).units(), 1, 1, 0);
  const LoadReport expected = whole.load(folder_.at("model"));
  each_mesh([&](int64_t tensor, int64_t blocks, int stage) {
    Split split(shape, Decoder(shape).units(), tensor, blocks, stage);
    EXPECT_EQ(split.load(folder_.at("model")).notes, expected.notes);
    EXPECT_EQ(split.tensors(), whole.tensors());
  });
}

/// The matrices of blocks are quantised on their own, from 16 bits as from the values of a folder in 4 bits.
TEST_F(SplitWeights, AreQuantisedByBlock) {
  const ModelConfig model = small_model("llama");
  write(model, {.type = StoredType::BF16});
  const Quantization format{QuantizedType::nf4, 64, false};
  if (communicator().rank() == 0) {
    quantize_model(folder_.at("model"),
                   {.output = folder_.at("nf4"),
                    .overwrite = true,
                    .type = {},
                    .texts = model_texts(folder_.at("model")),
                    .ids = {},
                    .save_tokenizer = {}},
                   format, {});
  }
  communicator().barrier();
  const DecoderShape shape = decoder_shape(model, model.vocab_size);
  std::vector<UnitSpec> units = frozen(Decoder(shape).units());
  std::vector<UnitSpec> with_quantised;
  for (const UnitSpec& unit : units) {  // matrices of layers in a unit of their own
    UnitSpec rest = unit, matrices = unit;
    std::erase_if(rest.params, [](const ParamSpec& param) { return param.hidden; });
    std::erase_if(matrices.params, [](const ParamSpec& param) { return !param.hidden; });
    matrices.name += " quantised";
    matrices.quantization = format;
    if (!rest.params.empty()) with_quantised.push_back(rest);
    if (!matrices.params.empty()) with_quantised.push_back(matrices);
  }
  for (const char* folder : {"model", "nf4"}) {
    Split values(shape, units, 1, 1, 0);
    values.load(folder_.at(folder));
    const auto expected = values.tensors();
    each_mesh([&](int64_t tensor, int64_t blocks, int stage) {
      Split loaded(shape, with_quantised, tensor, blocks, stage), given(shape, with_quantised, tensor, blocks, stage);
      loaded.load(folder_.at(folder));
      for (int u = 0; u < given.store->units().size(); ++u) {
        const UnitSpec& unit = given.store->units()[u].spec;
        for (size_t p = 0; p < unit.params.size(); ++p) {
          const ParamSpec& param = unit.params[p];
          std::vector<float> own(static_cast<size_t>(param.numel()));
          for (const ParamSlice& slice : param.slices) {
            float* to = own.data() + slice.first_row * param.columns;
            each_external_run(
                block_of(param, slice), param.columns, 0, slice.rows * param.columns, [&](const ExternalRun& run) {
                  std::copy_n(expected.at(slice.name).data() + run.first, run.end - run.begin, to + run.begin);
                });
          }
          test::set_parameter(*given.store, u, static_cast<int>(p), own.data(), given.mesh.parameters());
        }
      }
      given.store->publish_weights();
      EXPECT_EQ(loaded.tensors(), given.tensors()) << folder << ", tensor " << tensor << ", blocks " << blocks;
      EXPECT_NE(loaded.tensors(), expected);  // they are rounded
    });
  }
}

}  // namespace
}  // namespace llmtrain
