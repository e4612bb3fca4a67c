// Names of tensors with the components that other programs' wrappers add.

#include "hf/weights/stored_names.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hf/files.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;

const std::vector<std::string> llama = {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                                        "model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"};

StoredNames match(const std::vector<std::string>& stored, const DecoderNames& model = llama_names()) {
  return match_names(std::vector<std::string_view>(stored.begin(), stored.end()), model, "file");
}

std::string refusal(const std::vector<std::string>& stored) {
  return test::verdict(ExitCode::bad_content, [&] { match(stored); });
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(StoredNames, AreThoseOfTheModelWithoutWrappersAndPrefixes) {
  struct Wrapper {
    std::string before, layer, inside;
  };
  for (const auto& [before, layer, inside] :
       {Wrapper{"", "", ""}, Wrapper{"_orig_mod.", "", ""}, Wrapper{"module._orig_mod.", "", ""},
        Wrapper{"model.", "", ""}, Wrapper{"_forward_module.model.", "", ""},
        Wrapper{"", "model.layers", "model._orig_mod.layers"},
        Wrapper{"_fsdp_wrapped_module.", ".0.", ".0._fsdp_wrapped_module."},
        Wrapper{"module.", ".1.", ".1._checkpoint_wrapped_module."}, Wrapper{"net.", "", ""}}) {
    std::vector<std::string> stored;
    for (const std::string& name : llama)
      stored.push_back(before + (layer.empty() ? name : replaced(name, layer, inside)));
    const StoredNames names = match(stored);
    for (size_t i = 0; i < llama.size(); ++i) EXPECT_EQ(names.find(llama[i]), static_cast<int64_t>(i)) << stored[i];
    EXPECT_EQ(names.added, before);
    EXPECT_EQ(names.missing, "");
  }
}

TEST(StoredNames, OfAModelWithoutItsHeadLackTheFirstPart) {
  std::vector<std::string> stored;
  for (const std::string& name : llama) stored.push_back("module." + replaced(name, "model.", ""));
  const StoredNames names = match(stored);
  for (size_t i = 0; i < llama.size(); ++i) EXPECT_EQ(names.find(llama[i]), static_cast<int64_t>(i)) << stored[i];
  EXPECT_EQ(names.added, "module.");
  EXPECT_EQ(names.missing, "model.");
}

TEST(StoredNames, ThatDoNotAgreeAreRefused) {
  std::vector<std::string> mixed = llama;
  mixed[1] = "module." + mixed[1];
  EXPECT_THAT(refusal(mixed), HasSubstr("q_proj.weight' have different prefixes: one of them begins with 'module.'"));
  mixed = llama;
  mixed.push_back("vision_tower.weight");
  EXPECT_EQ(refusal(mixed), "accepted") << "whether the model has it is another question";
  for (std::string& name : mixed) name = "model." + name;
  mixed.back() = "vision_tower.weight";
  EXPECT_THAT(refusal(mixed), HasSubstr("begins with 'model.'"));
  std::vector<std::string> twice = llama;
  twice.emplace_back("model.layers.1._orig_mod.mlp.up_proj.weight");
  EXPECT_THAT(refusal(twice), HasSubstr("are both 'model.layers.1.mlp.up_proj.weight'"));
  EXPECT_EQ(match({}).find("model.norm.weight"), -1);
}

}  // namespace
}  // namespace llmtrain
