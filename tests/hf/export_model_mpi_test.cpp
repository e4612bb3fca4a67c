// Round trip: the files that stores of every stage and number of ranks write equal, byte for byte, those that they were
// loaded from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <set>

#include "hf/export.hpp"
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
using testing::HasSubstr;

void export_all(const ExportOptions& options, Started& started) {
  const auto gather = [&](int unit, int64_t begin, int64_t end, float* out) {
    started.store.gather_range(unit, begin, end, out);
  };
  export_model(options, started.shape, units_of(started.store), gather, communicator());
}

class ExportModel : public testing::Test {
 public:
  ExportModel() : folder_(test::shared_path("export"), communicator().rank() == 0) { communicator().barrier(); }
  ~ExportModel() override { communicator().barrier(); }

 protected:
  void write(const ModelConfig& model, const Stored& stored) const {
    if (communicator().rank() == 0) test::write_model(folder_.at("in"), model, stored);
    communicator().barrier();
  }
  static std::set<std::string> names_in(const std::string& path) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) names.insert(entry.path().filename().string());
    return names;
  }
  /// Returns the files that differ between "in" and "out" (rank 0 looks).
  std::set<std::string> differing() const {
    communicator().barrier();
    std::set<std::string> result;
    if (communicator().rank() != 0) return result;
    std::set<std::string> names = names_in(folder_.at("in"));
    names.merge(names_in(folder_.at("out")));
    for (const std::string& name : names) {
      if (folder_.read("in/" + name) != folder_.read("out/" + name)) result.insert(name);
    }
    return result;
  }

  test::ScratchFolder folder_;
};

class ExportOf : public ExportModel, public testing::WithParamInterface<const char*> {};

TEST_P(ExportOf, FilesComeBackByteForByte) {
  const ModelConfig model = small_model(GetParam());
  for (const Stored& stored : {Stored{}, Stored{.type = StoredType::BF16, .file_bytes = 9000},
                               Stored{.type = StoredType::F16, .file_bytes = 9000}}) {
    write(model, stored);
    for (int stage = stored.type == StoredType::F32 ? 0 : 3; stage <= 3; ++stage) {
      Started started(model, DType::bf16, stage);
      load_weights(folder_.at("in"), started.shape, started.store, communicator(), stream());
      ExportOptions options{.output = folder_.at("out"),
                            .overwrite = true,
                            .type = stored.type,
                            .file_bytes = stored.file_bytes,
                            .texts = {},
                            .ids = {},
                            .save_tokenizer = {}};
      export_all(options, started);
      // A new config.json names the type of the weights, and a generation_config.json is added.
      std::set<std::string> expected;
      if (communicator().rank() == 0) expected = {"generation_config.json"};
      if (communicator().rank() == 0 && stored.type != StoredType::F32) expected.insert("config.json");
      EXPECT_EQ(differing(), expected) << GetParam() << ", stage " << stage << ", " << name_of(stored.type);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, ExportOf,
                         testing::Values("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "mixtral",
                                         "olmoe", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss",
                                         "starcoder2", "granite", "smollm3", "olmo2", "gpt_neox", "falcon",
                                         "gemma3_text"));

TEST_F(ExportModel, WhatBelongsToTheSourceIsTakenOver) {
  const ModelConfig model = small_model("gpt2");
  write(model, {});
  if (communicator().rank() == 0) {
    folder_.write("in/tokenizer.json", "{}");
    folder_.write("in/generation_config.json", "{ \"top_k\": 5 }");
    folder_.write("in/README.md", "not of the model");
  }
  communicator().barrier();
  Started started(model, DType::f32, 3);
  load_weights(folder_.at("in"), started.shape, started.store, communicator(), stream());
  ExportOptions options;
  options.output = folder_.at("out");
  options.texts = model_texts(folder_.at("in"));
  export_all(options, started);
  const bool root = communicator().rank() == 0;
  EXPECT_EQ(differing(), root ? std::set<std::string>{"README.md"} : std::set<std::string>{});
  // The second time it exists, on every rank.
  EXPECT_THAT(test::verdict(ExitCode::cannot_create, [&] { export_all(options, started); }),
              HasSubstr("it already exists"));
  communicator().barrier();
  if (root) folder_.write("out/README.md", "what a person wrote about it");
  communicator().barrier();
  options.overwrite = true;
  options.texts.clear();
  options.save_tokenizer = [](const std::string& folder) { std::ofstream(folder + "/tokenizer.model") << "x"; };
  export_all(options, started);
  communicator().barrier();
  EXPECT_EQ(names_in(folder_.at("out")), (std::set<std::string>{"README.md", "config.json", "generation_config.json",
                                                                "model.safetensors", "tokenizer.model"}));
  EXPECT_EQ(names_in(folder_.path()), (std::set<std::string>{"in", "out"}));  // nothing is left behind
}

TEST_F(ExportModel, AFolderOfFoldersIsNeverReplaced) {
  Started started(small_model("llama"), DType::f32, 1);
  started.set();
  if (communicator().rank() == 0) {
    std::filesystem::create_directories(folder_.at("out/other"));
    folder_.write("out/other/model.safetensors", "another model");
  }
  communicator().barrier();
  ExportOptions options;
  options.output = folder_.at("out");
  options.overwrite = true;
  const auto refusal = [&] { return test::verdict(ExitCode::cannot_create, [&] { export_all(options, started); }); };
  EXPECT_THAT(refusal(), HasSubstr("it contains 'other', so it is not the folder of one model"));
  options.output = folder_.at("out/.");
  EXPECT_THAT(refusal(), HasSubstr("give the folder's own name"));
  communicator().barrier();
  EXPECT_EQ(folder_.read("out/other/model.safetensors"), "another model");
}

TEST_F(ExportModel, AModelThatTransformersDoesNotHaveIsRefusedOnEveryRank) {
  ModelConfig model = small_model("gpt2");
  model.positions = ModelConfig::Positions::rope;
  Started started(model, DType::f32, 1);
  ExportOptions options;
  options.output = folder_.at("out");
  EXPECT_THAT(test::verdict(ExitCode::deck, [&] { export_all(options, started); }),
              HasSubstr("Transformers has no gpt2 model with model.positions = rope"));
}

TEST_F(ExportModel, AFailureToWriteEndsOnEveryRankAndLeavesNothing) {
  Started started(small_model("llama"), DType::f32, 3);
  started.set();
  ExportOptions options;
  options.output = folder_.at("out");
  options.save_tokenizer = [](const std::string&) { throw UserError(ExitCode::io, "disk full"); };
  EXPECT_THAT(test::verdict(ExitCode::io, [&] { export_all(options, started); }), HasSubstr("disk full"));
  communicator().barrier();
  EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{});
}

TEST_F(ExportModel, WhatKilledProcessesLeftGoesUnlessFilesOfTheUserAreInIt) {
  write(small_model("llama"), {});
  if (communicator().rank() != 0) return;
  std::array<char, 64> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string left = std::string("out.partial-") + host.data() + "-";
  const std::string partial = left + "2147483646", replaced = left + "2147483647";  // no process has such a number
  for (const std::string& name : {partial, replaced}) {
    std::filesystem::create_directories(folder_.at(name));
    folder_.write(name + "/model.safetensors", "half of it");
  }
  folder_.write(replaced + "/README.md", "what a person wrote about it");
  ExportOptions options;
  options.output = folder_.at("out");
  convert_model(folder_.at("in"), options);
  EXPECT_EQ(names_in(folder_.path()), (std::set<std::string>{"in", "out", replaced}));
}

TEST_F(ExportModel, FolderToFolder) {
  const ModelConfig model = small_model("gpt2");
  write(model, {.type = StoredType::BF16, .file_bytes = 9000, .prefix = false, .extras = true});
  if (communicator().rank() == 0) {
    ExportOptions options;
    options.output = folder_.at("single");
    convert_model(folder_.at("in"), options);
    options.output = folder_.at("full");
    options.type = StoredType::F32;
    convert_model(folder_.at("single"), options);
    options.output = folder_.at("back");
    options.type = StoredType::BF16;
    convert_model(folder_.at("full"), options);
    EXPECT_EQ(folder_.read("single/model.safetensors"), folder_.read("back/model.safetensors"));
    EXPECT_NE(folder_.read("single/model.safetensors"), folder_.read("full/model.safetensors"));
    EXPECT_FALSE(folder_.read("back/model.safetensors").empty());
  }
  communicator().barrier();
}

}  // namespace
}  // namespace llmtrain
