// Files of adapters: what adapter_config.json chooses, compared with PEFT (tests/reference/adapters), and files that
// are broken in one place.

#include "hf/adapters/adapter_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "hf/config/config_json.hpp"
#include "hf/files.hpp"
#include "models/models.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const std::string goldens = "tests/reference/adapters/";

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

DecoderShape shape_of_model(const std::string& name) {
  const std::string path = "tests/reference/hf/" + name + "/config.json";
  const ModelConfig model = parse_hf_config(text_of(path), path).model;
  return decoder_shape(model, model.vocab_size);
}

AdapterConfig parsed(json config) {
  config["peft_type"] = "LORA";
  return parse_adapter_config(config.dump(), adapter_config_name);
}

LoraConfig lora_of(const json& config) { return parsed(config).lora; }

/// The part that a stored configuration chooses.
LoraPart part_of(const json& config, const ModelConfig& model, std::vector<std::string>* warnings = nullptr) {
  AdapterConfig adapter = parsed(config);
  std::vector<std::string> unused;
  return choose_stored_adapters(adapter, model, adapter_config_name, warnings != nullptr ? *warnings : unused);
}

std::vector<std::string> names(const LoraPart& part) {
  std::vector<std::string> out;
  for (const auto& [name, shape] : part.modules) out.push_back(name);
  return out;
}

// Every setting chooses the modules and the tensors that it chooses in PEFT, which ignores names that match nothing
// beside one that does; a setting that PEFT refuses is refused.
TEST(AdapterModules, AreThoseOfPeft) {
  const json all = json::parse(text_of(goldens + "modules.json"));
  int count = 0, refused = 0;
  for (const auto& [family, cases] : all.items()) {
    if (!cases.is_object()) continue;
    const ModelConfig model = shape_of_model(family).config;
    const std::vector<std::string> known = cases["modules"];
    for (const json& row : cases["settings"]) {
      SCOPED_TRACE(family + " " + row["config"].dump());
      std::vector<std::string> expected;
      for (const size_t number : row.value("modules", std::vector<size_t>())) expected.push_back(known.at(number));
      ++count;
      if (row.contains("error")) {
        ++refused;
        EXPECT_THROW(part_of(row["config"], model), UserError);
        continue;
      }
      const LoraPart part = part_of(row["config"], model);
      EXPECT_THAT(names(part), ElementsAreArray(expected));
      const std::set<std::string> trained = row["trained"];
      EXPECT_THAT(part.trained, ElementsAreArray(trained));
      // The targets that are written for PEFT choose the same.
      json written = row["config"];
      written["target_modules"] = part.targets;
      EXPECT_EQ(names(part_of(written, model)), names(part)) << written;
    }
  }
  EXPECT_EQ(count, 190);
  EXPECT_EQ(refused, 25);
}

TEST(AdapterModules, OneWarningNamesWhatAStoredAdapterNamesInVain) {
  const ModelConfig model = shape_of_model("llama").config;
  const auto warnings = [&](const json& config) {
    std::vector<std::string> found;
    part_of(config, model, &found);
    return found;
  };
  const json config = {{"target_modules", {"q_proj", "c_attn", "Wqkv"}},  {"exclude_modules", {"zzz"}},
                       {"modules_to_save", {"score", "lm_head"}},         {"layers_to_transform", {0, 1, 2}},
                       {"rank_pattern", {{"q_proj", 4}, {"up_proj", 5}}}, {"alpha_pattern", {{"zz.*", 4}}}};
  EXPECT_THAT(
      warnings(config),
      ::testing::ElementsAre("adapter_config.json: it names parameters that the model does not have; they are ignored: "
                             "target_modules Wqkv, c_attn; exclude_modules zzz; modules_to_save score; "
                             "layers_to_transform 2; rank_pattern up_proj; alpha_pattern zz.*"));
  EXPECT_THAT(warnings({{"target_modules", {"q_proj"}}}), ::testing::IsEmpty());
}

// PEFT applies target_parameters to fused experts in all layers, whatever else the configuration says of layers and
// modules.
TEST(AdapterModules, OfFusedExpertsAreThoseOfEveryExpert) {
  const ModelConfig model = shape_of_model("mixtral").config;  // 2 layers, 4 experts
  json config = {{"target_modules", {"v_proj", "w2"}},
                 {"target_parameters", {"mlp.experts.gate_up_proj"}},
                 {"exclude_modules", {"experts.1.w1", "1.self_attn.v_proj"}},
                 {"r", 4},
                 {"rank_pattern", {{".*gate_up_proj", 3}, {"w1", 2}}},
                 {"alpha_pattern", {{R"(0\.mlp\.experts\.gate_up_proj)", 6}}}};
  std::vector<std::string> warnings;
  const LoraPart part = part_of(config, model, &warnings);
  EXPECT_THAT(warnings, ::testing::IsEmpty());
  EXPECT_EQ(part.modules.size(), 17);
  const auto shape = [&](const std::string& name) { return part.modules.at("model.layers." + name); };
  EXPECT_EQ(shape("0.self_attn.v_proj").rank, 4);
  for (const char* name : {"0.block_sparse_moe.experts.1.w1", "1.block_sparse_moe.experts.3.w3"}) {
    EXPECT_EQ(shape(name).rank, 3) << name;
    EXPECT_EQ(shape(name).scale, name[0] == '0' ? 2 : 8.0 / 3) << name;
  }
  const auto refusal = [&](const json& more) {
    json other = config;
    other.update(more);
    return verdict(ExitCode::bad_content, [&] { part_of(other, model); });
  };
  EXPECT_THAT(refusal({{"target_parameters", {"down_proj", "mlp.gate.weight"}}}),
              HasSubstr("adapter_config.json: target_parameters: 'mlp.gate.weight': only those of fused experts"));
  EXPECT_THAT(refusal({{"layers_to_transform", {0}}}), HasSubstr("layers_to_transform: it cannot be combined with"));
  config["target_modules"] = json::array();
  config["exclude_modules"] = json();
  config["layers_to_transform"] = {0};
  EXPECT_EQ(part_of(config, model).modules.size(), 16);
}

TEST(AdapterModules, ErrorsNameWhatExists) {
  const ModelConfig model = shape_of_model("llama").config, gpt2 = shape_of_model("gpt2").config;
  const auto error = [](const json& config, const ModelConfig& of) {
    const LoraPart part = choose_adapters(lora_of(config), of);
    return part.errors.empty() ? "none" : part.errors.front().first + ": " + part.errors.front().second;
  };
  const json q = {"q_proj"};
  EXPECT_EQ(
      error({{"target_modules", {"q_prj"}}}, model),
      "target_modules: the model has no q_prj (did you mean q_proj?); it has down_proj, gate_proj, k_proj, o_proj, "
      "q_proj, up_proj, v_proj");
  EXPECT_THAT(error({{"target_modules", {"q_proj", "c_attn"}}}, model), HasSubstr("the model has no c_attn"));
  EXPECT_THAT(error({{"target_modules", ".*q_prj"}}, model), HasSubstr("does not match the full name of any module"));
  EXPECT_EQ(error({{"target_modules", {"lm_head"}}}, model), "none");
  EXPECT_EQ(error({{"target_modules", {"lm_head"}}, {"use_dora", true}}, model), "none");
  EXPECT_THAT(error({{"target_modules", {"wte"}}, {"use_dora", true}}, gpt2),
              HasSubstr("dora: the adapter of the embedding transformer.wte cannot have magnitudes here"));
  EXPECT_THAT(error({{"target_modules", {"input_layernorm"}}}, model), HasSubstr("is not a linear layer"));
  EXPECT_THAT(error({{"target_modules", q}, {"layers_to_transform", 2}}, model),
              HasSubstr("the model's layers are 0 to 1"));
  EXPECT_THAT(error({{"target_modules", ".*q_proj"}, {"layers_to_transform", 1}}, model),
              HasSubstr("regular expression"));
  EXPECT_THAT(error({{"target_modules", q}, {"layers_pattern", "h"}}, model),
              HasSubstr("without lora.layers_to_transform"));
  EXPECT_THAT(error({{"target_modules", q}, {"exclude_modules", {"q_proj"}}}, model),
              HasSubstr("every target is excluded"));
  EXPECT_THAT(error({{"target_modules", q}, {"exclude_modules", {"zzz"}}}, model), HasSubstr("exclude_modules"));
  EXPECT_THAT(error({{"target_modules", {"q_proj", "k_proj"}}, {"exclude_modules", {"k_proj", "zzz"}}}, model),
              HasSubstr("exclude_modules: the model has no zzz"));
  EXPECT_THAT(error({{"target_modules", "all-linear"}, {"exclude_modules", ".*z"}}, model),
              HasSubstr("exclude_modules: the model has no .*z; it has"));
  EXPECT_EQ(error({{"target_modules", q}, {"rank_pattern", {{"k_proj", 4}}}}, model),
            "rank_pattern: no module with an adapter is called k_proj (did you mean q_proj?); it has q_proj");
  EXPECT_THAT(error({{"target_modules", q}, {"alpha_pattern", {{"(q", 4}}}}, model),
              HasSubstr("alpha_pattern: the regex '(q', at byte 2, has a ( without )"));
  EXPECT_THAT(error({{"target_modules", q}, {"layers_to_transform", 1}, {"layers_pattern", "(q"}}, model),
              HasSubstr("layers_pattern: the regex '(q', at byte 2, has a ( without )"));
  EXPECT_THAT(error({{"target_modules", q}, {"modules_to_save", {"norms"}}}, model),
              HasSubstr("the model has no norms"));
  EXPECT_THAT(error({{"target_modules", q}, {"modules_to_save", {"proj"}}}, model), HasSubstr("which is adapted"));
}

TEST(AdapterConfig, ScalesAndRanks) {
  const ModelConfig model = shape_of_model("llama").config;
  const LoraPart part = choose_adapters(lora_of({{"target_modules", "all-linear"},
                                                 {"r", 4},
                                                 {"lora_alpha", 6},
                                                 {"use_rslora", true},
                                                 {"use_dora", true},
                                                 {"lora_dropout", 0.25},
                                                 {"rank_pattern", {{"q_proj", 16}, {R"(.*\.1\.mlp\.down_proj)", 9}}},
                                                 {"alpha_pattern", {{"o_proj", 10}}}}),
                                        model);
  const auto shape = [&](const std::string& name) { return part.modules.at("model.layers." + name); };
  EXPECT_EQ(shape("0.self_attn.q_proj").rank, 16);
  EXPECT_EQ(shape("0.self_attn.q_proj").scale, 1.5);
  EXPECT_EQ(shape("1.mlp.down_proj").scale, 2);
  EXPECT_EQ(shape("0.mlp.down_proj").scale, 3);
  EXPECT_EQ(shape("1.self_attn.o_proj").scale, 5);
  EXPECT_TRUE(shape("1.self_attn.o_proj").dora);
  EXPECT_EQ(shape("1.self_attn.o_proj").dropout, 0.25);
}

// The first pattern that matches counts, so that another order is another adapter.
TEST(AdapterConfig, PatternsAreWrittenInTheirOrder) {
  const ModelConfig model = shape_of_model("llama").config;
  AdapterConfig config;
  const json settings = {{"target_modules", "all-linear"}};
  config.lora = lora_of(settings);
  config.lora.alpha_pattern = {{"q_proj", 4}, {".*proj", 8}};
  const std::string text = write_adapter_config(config, choose_adapters(config.lora, model), model);
  EXPECT_EQ(parse_adapter_config(text, adapter_config_name).lora.alpha_pattern, config.lora.alpha_pattern);
}

TEST(AdapterConfig, RefusesWhatItDoesNotKnow) {
  const auto error = [](const std::string& more) {
    const std::string text = R"({"peft_type":"LORA","target_modules":["q_proj"])" + more + "}";
    return verdict(ExitCode::bad_content, [&] { parse_adapter_config(text, "adapter_config.json"); });
  };
  EXPECT_EQ(error(""), "accepted");
  EXPECT_EQ(error(R"(,"r":0)"), "adapter_config.json: r: must be an integer from 1 to 65536, not 0");
  for (const char* more : {R"("r":-1)",
                           R"("r":2.5)",
                           R"("lora_alpha":0)",
                           R"("lora_alpha":1e300)",
                           R"("alpha_pattern":{"q_proj":1e7})",
                           R"("lora_alpha":"x")",
                           R"("lora_dropout":1)",
                           R"("bias":"some")",
                           R"("target_modules":null)",
                           R"("target_modules":7)",
                           R"("target_modules":"(q")",
                           R"("target_modules":"\\h+")",
                           R"("init_lora_weights":"pissa_niter_4")",
                           R"("use_qalora":true)",
                           R"("lora_bias":true)",
                           R"("layer_replication":[[0,2]])",
                           R"("trainable_token_indices":[3])",
                           R"("target_parameters":"w")",
                           R"("alora_invocation_tokens":[1])",
                           R"("task_type":"QUESTION_ANS")",
                           R"("layers_to_transform":[-1])",
                           R"("rank_pattern":{"q_proj":0})",
                           R"("rank_pattern":["q_proj"])",
                           R"("use_dora":1)"}) {
    const std::string key = json::parse(std::string("{") + more + "}").begin().key();
    const std::string text = std::string(R"({"peft_type":"LORA",)") +
                             (key == "target_modules" ? "" : R"("target_modules":["q_proj"],)") + more + "}";
    EXPECT_THAT(verdict(ExitCode::bad_content, [&] { parse_adapter_config(text, "a.json"); }),
                AllOf(HasSubstr("a.json: "), HasSubstr(key)))
        << more;
  }
  const auto refusal = [](const std::string& text) {
    return verdict(ExitCode::bad_content, [&] { parse_adapter_config(text, "a.json"); });
  };
  for (const char* type : {"'LOHA'", "'LOKR'", "'IA3'", "'PROMPT_TUNING'", "'ADALORA'", "7"}) {
    std::string json_type = type;
    std::ranges::replace(json_type, '\'', '"');
    EXPECT_EQ(refusal("{\"peft_type\":" + json_type + ",\"target_modules\":[\"q\"]}"),
              std::string("a.json: peft_type: ") + type + "; only adapters of type LORA are supported");
  }
  EXPECT_THAT(refusal(R"({"target_modules":["q"]})"), HasSubstr("peft_type: it is missing"));
  EXPECT_EQ(refusal("[]"), "a.json: must be an object");
  EXPECT_NE(refusal("{"), "accepted");
  EXPECT_EQ(verdict(ExitCode::bad_content,
                    [&] { parse_adapter_config(R"({"peft_type":"LORA","target_modules":"(q"})", "a.json"); }),
            "a.json: target_modules: the regex '(q', at byte 2, has a ( without )");
  // A regular expression for which matching takes forever ends.
  const std::string slow = "((([a-z.0-9_]+)+)+)+!";
  EXPECT_THAT(verdict(ExitCode::bad_content,
                      [&] {
                        part_of({{"target_modules", slow}}, shape_of_model("llama").config);
                      }),
              HasSubstr("target_modules: the regular expression does not match the full name of any module"));
}

TEST(AdapterConfig, KeysThatPeftDoesNotHaveGiveOneWarning) {
  const auto warnings = [](const std::string& more) {
    return parse_adapter_config(R"({"peft_type":"LORA","target_modules":["q_proj"])" + more + "}", "a.json").warnings;
  };
  EXPECT_THAT(
      warnings(R"(,"zeta":[1],"a_key_of_the_future":{"x":1},"no_value":null)"),
      ::testing::ElementsAre("a.json: keys that PEFT does not have are ignored: 'a_key_of_the_future', 'zeta'"));
  EXPECT_THAT(warnings(R"(,"no_value":null,"peft_version":"0.21.2")"), ::testing::IsEmpty());
}

TEST(AdapterModules, OfATiedModelAreTrainedApartUnlessTheConfigurationTiesThem) {
  const ModelConfig model = shape_of_model("qwen2").config;
  const auto part = [&](const json& saved, bool ensure) {
    return part_of({{"target_modules", {"q_proj"}}, {"modules_to_save", saved}, {"ensure_weight_tying", ensure}},
                   model);
  };
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  for (const json& saved :
       {json::array({"embed_tokens"}), json::array({"lm_head"}), json::array({"embed_tokens", "lm_head"})}) {
    const LoraPart apart = part(saved, false), tied = part(saved, true);
    EXPECT_TRUE(apart.unties_head && !apart.trains_tied_head);
    EXPECT_EQ(apart.trained.size(), saved.size());
    EXPECT_TRUE(!tied.unties_head && tied.trains_tied_head);
    EXPECT_THAT(tied.trained, ::testing::ElementsAre(embedding));
  }
  EXPECT_THAT(part(json::array({"lm_head"}), false).trained, ::testing::ElementsAre(head));
  const LoraPart none = part(json::array({"norm"}), false);
  EXPECT_FALSE(none.unties_head || none.trains_tied_head);
}

class AdapterFiles : public ::testing::Test {
 protected:
  explicit AdapterFiles() {
    for (const char* name : {adapter_config_name, adapter_weights_name}) {
      fs::copy_file(goldens + "llama_qv/" + name, folder_.at(name));
    }
    bytes_ = folder_.read(adapter_weights_name);
    uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), sizeof(length));
    header_ = json::parse(bytes_.substr(8, length));
    data_ = bytes_.substr(8 + length);
  }

  /// Message of an attempt to read the folder.
  std::string outcome() const {
    return verdict(ExitCode::bad_content, [&] {
      const DecoderShape base = shape_of_model("llama");
      const AdapterFolder adapter = AdapterFolder::open(folder_.path(), base);
      DecoderShape shape = base;
      adapt(shape, adapter.config.lora);
      match_adapter(adapter, shape, Decoder(shape).units());
    });
  }
  std::string with_header(const json& header) const {
    const std::string text = header.dump();
    std::string start(8, '\0');
    const uint64_t length = text.size();
    std::memcpy(start.data(), &length, 8);
    folder_.write(adapter_weights_name, start + text + data_);
    return outcome();
  }
  /// The same with a tensor under another name.
  std::string renamed(const std::string& from, const std::string& to) const {
    json header = header_;
    header[to] = header.at(from);
    header.erase(from);
    return with_header(header);
  }
  void set(const json& keys) const {
    json config = json::parse(folder_.read(adapter_config_name));
    config.update(keys);
    folder_.write(adapter_config_name, config.dump());
  }

  ScratchFolder folder_{unique_name("adapter")};
  std::string bytes_, data_;
  json header_;
  const std::string a_ = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
};

TEST_F(AdapterFiles, AreReadUnderOldNames) {
  EXPECT_EQ(outcome(), "accepted");
  EXPECT_EQ(renamed(a_, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"), "accepted");
  EXPECT_THAT(renamed(a_, "model.layers.0.self_attn.q_proj.lora_A.weight"),
              AllOf(HasSubstr("missing: " + a_), HasSubstr("not in the adapter: 'model.layers.0.self_attn.q_proj")));
}

TEST_F(AdapterFiles, ThatDoNotFitAreRefused) {
  const std::string place = folder_.at(adapter_weights_name);
  json other = header_;
  other[a_]["shape"] = {24, 3};
  EXPECT_THAT(with_header(other),
              AllOf(HasSubstr(place), HasSubstr("with another shape: " + a_ + " is [24, 3] instead of [3, 24]")));
  other = header_;
  other[a_]["dtype"] = "I32";
  EXPECT_THAT(with_header(other), HasSubstr(a_ + " is I32"));
  EXPECT_THAT(renamed(a_, "base_model.model.model.embed_tokens.lora_embedding_A"), HasSubstr("lora_embedding_A"));
  folder_.write(adapter_weights_name, bytes_.substr(0, bytes_.size() - 7));
  EXPECT_THAT(outcome(), HasSubstr(place));
  folder_.write(adapter_weights_name, bytes_);
  set({{"r", 16}});
  EXPECT_THAT(outcome(), HasSubstr("is [3, 24] instead of [16, 24]"));
  set({{"r", 3}, {"use_dora", true}});
  EXPECT_THAT(outcome(), HasSubstr("missing: base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"));
  set({{"use_dora", false}, {"target_modules", {"q_proj"}}});
  EXPECT_THAT(outcome(), HasSubstr("not in the adapter: 'base_model.model.model.layers.0.self_attn.v_proj"));
  set({{"target_modules", {"c_attn"}}});
  EXPECT_THAT(outcome(), AllOf(HasSubstr(adapter_config_name), HasSubstr("the model has no c_attn")));
}

TEST(FusedAdapters, ThatDoNotFitAreRefused) {
  const ScratchFolder folder(unique_name("fused-adapter"));
  fs::copy_file(goldens + "mixtral_named/" + adapter_weights_name, folder.at(adapter_weights_name));
  const auto outcome = [&](const json& keys) {
    json config = json::parse(text_of(goldens + "mixtral_named/" + adapter_config_name));
    config.update(keys);
    folder.write(adapter_config_name, config.dump());
    return verdict(ExitCode::bad_content, [&] { AdapterFolder::open(folder.path(), shape_of_model("mixtral")); });
  };
  EXPECT_EQ(outcome(json::object()), "accepted");
  const std::string module = "base_model.model.model.layers.0.mlp.experts.";
  EXPECT_THAT(
      outcome({{"rank_pattern", json::object()}}),
      AllOf(HasSubstr(folder.at(adapter_weights_name) + ": the tensors do not fit the target_parameters"),
            HasSubstr("with another shape: " + module + "base_layer.lora_A.weight is [16, 24] instead of [8, 24]")));
  EXPECT_THAT(outcome({{"target_parameters", {"gate_up_proj"}}}), HasSubstr("lora_A.weight is [8, 20] instead of"));
}

TEST_F(AdapterFiles, ThatAreMissingAreNamed) {
  fs::remove(folder_.at(adapter_weights_name));
  const auto missing = [&](const std::string& folder) {
    return verdict(ExitCode::missing_input, [&] { AdapterFolder::open(folder, shape_of_model("llama")); });
  };
  EXPECT_THAT(missing(folder_.path()), HasSubstr(adapter_weights_name));
  folder_.write("adapter_model.bin", "");
  EXPECT_THAT(missing(folder_.path()), HasSubstr("load the adapter with PEFT and save it again"));
  fs::create_directory(folder_.at("run"));
  fs::create_directory(folder_.at("run/adapter"));
  fs::rename(folder_.at(adapter_config_name), folder_.at(std::string("run/adapter/") + adapter_config_name));
  EXPECT_THAT(missing(folder_.at("run")), HasSubstr("did you mean " + folder_.at("run/adapter")));
}

}  // namespace
}  // namespace llmtrain::test
