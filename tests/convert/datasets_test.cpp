// Data sets, batches and adapters of Axolotl, torchtune and LLaMA-Factory in decks: every key of a data set is
// reported, and no format, column or split of one holds silently for all.
#include "converted.hpp"

namespace llmtrain::test {
namespace {

using convert::Conversion;
using convert::Effect;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

/// The finding of a key, as "effect: text"; "" without one.
std::string found(const Conversion& out, const std::string& key) {
  for (const convert::Finding& finding : out.findings) {
    if (finding.key != key) continue;
    const std::string effect = finding.effect == Effect::mapped        ? "mapped"
                               : finding.effect == Effect::no_effect   ? "no effect"
                               : finding.effect == Effect::unsupported ? "not supported"
                                                                       : "unknown";
    return effect + ": " + finding.text;
  }
  return "";
}

class Datasets : public ConvertTest {
 protected:
  Conversion axolotl(const std::string& text, int64_t ranks = 0) const {
    return of_text("a.yaml", "base_model: ./m\n" + text, "axolotl", ranks);
  }
  Conversion torchtune(const std::string& text) const { return of_text("t.yaml", text, "torchtune"); }
};

TEST_F(Datasets, EveryKeyOfAnEntryIsReported) {
  const Conversion out = axolotl(
      "datasets:\n  - path: json\n    data_files: [a.jsonl, b.jsonl]\n    type: chat_template\n"
      "    field_messages: talk\n    message_property_mappings: {role: from, content: value}\n"
      "    roles_to_train: [assistant]\n    train_on_eos: last\n    split: train[:10%]\n    shards: 4\n"
      "    name: english\n    ds_type: json\n    roles: {user: [person]}\n    wieght: 2\n");
  EXPECT_THAT(out.deck, HasSubstr("train = a.jsonl, b.jsonl "));
  EXPECT_THAT(out.deck, HasSubstr("columns = messages:talk, role:from, content:value"));
  EXPECT_THAT(out.deck, HasSubstr("format = sharegpt")) << "whose roles are human and gpt";
  EXPECT_THAT(out.deck, HasSubstr("train_on = assistant"));
  for (const std::string key : {"train_on_eos", "split", "shards", "name", "roles"}) {
    EXPECT_THAT(found(out, "datasets.0." + key), HasSubstr("not supported")) << key;
  }
  EXPECT_THAT(found(out, "datasets.0.wieght"), HasSubstr("unknown"));
  EXPECT_THAT(found(out, "datasets.0.ds_type"), HasSubstr("no effect"));
  EXPECT_EQ(out.findings.size(), 14u);
  EXPECT_THAT(found(axolotl("datasets:\n  - path: a.jsonl\n    split: train\n"), "datasets.0.split"),
              HasSubstr("no effect"));
}

TEST_F(Datasets, ColumnsOfTextsAndOfTheUsersOwnType) {
  const Conversion text = axolotl("datasets:\n  - path: a.jsonl\n    type: completion\n    field: body\n");
  EXPECT_THAT(text.deck, AllOf(HasSubstr("format = text"), HasSubstr("columns = text:body")));
  const Conversion pretraining =
      axolotl("pretraining_dataset:\n  - path: a.jsonl\n    text_column: body\n    name: en\n");
  EXPECT_THAT(pretraining.deck, AllOf(HasSubstr("task = pretrain"), HasSubstr("text_column = body")));
  EXPECT_THAT(found(pretraining, "pretraining_dataset.0.name"), HasSubstr("not supported"));
  const Conversion own = axolotl(
      "datasets:\n  - path: a.jsonl\n    type:\n      field_instruction: q\n      field_output: a\n"
      "      format: '[INST] {instruction}'\n");
  EXPECT_THAT(own.deck, AllOf(HasSubstr("format = alpaca"), HasSubstr("columns = prompt:q, response:a")));
  EXPECT_THAT(found(own, "datasets.0.type.format"), HasSubstr("not supported"));
}

TEST_F(Datasets, DifferentEntriesAreNeverOneFormat) {
  const std::string one = "datasets:\n  - path: a.jsonl\n    type: alpaca\n  - path: b.jsonl\n    type: ";
  EXPECT_THAT(axolotl(one + "alpaca\n").deck, HasSubstr("format = alpaca")) << "one format is none to be told";
  const Conversion two = axolotl(one + "chat_template\n");
  EXPECT_THAT(two.deck, AllOf(HasSubstr("format = auto"), Not(HasSubstr("format = alpaca"))));
  EXPECT_THAT(found(two, "datasets.1.type"), HasSubstr("not supported"));
  EXPECT_THAT(found(axolotl(one + "chatml.intel\n"), "datasets.1.type"), HasSubstr("not supported"));
  EXPECT_THAT(found(axolotl("rl: dpo\n" + one + "chatml.intel\n"), "datasets.1.type"),
              AllOf(HasSubstr("not supported"), HasSubstr("data.format = preference")));
  EXPECT_THAT(found(axolotl("datasets:\n  - type: [alpaca]\n"), "datasets.0.type"), HasSubstr("not supported"));
  const std::string builder = "  - _component_: torchtune.datasets.";
  EXPECT_THAT(found(torchtune("dataset:\n" + builder + "alpaca_dataset\n" + builder + "instruct_dataset\n"),
                    "dataset.1._component_"),
              HasSubstr("not supported"));
  const Conversion columns =
      axolotl("datasets:\n  - path: a.jsonl\n    field_messages: x\n  - path: b.jsonl\n    field_messages: y\n");
  EXPECT_THAT(found(columns, "datasets.1.field_messages"), HasSubstr("not supported"));
}

TEST_F(Datasets, NamesOfTheHubAreToFillIn) {
  const Conversion mixed = axolotl("datasets:\n  - path: ./b.jsonl\n  - path: tatsu-lab/alpaca\n");
  EXPECT_THAT(mixed.deck, Not(HasSubstr("\ntrain = ")));
  EXPECT_THAT(mixed.needs,
              Contains(AllOf(HasSubstr("data.train"), HasSubstr("tatsu-lab/alpaca"), HasSubstr("b.jsonl"))));
  EXPECT_THAT(axolotl("datasets:\n  - path: ./b.jsonl\n  - path: c.jsonl\n").deck,
              HasSubstr("\ntrain = ./b.jsonl, c.jsonl"));
}

TEST_F(Datasets, LongListsAreOneSetting) {
  std::string text = "datasets:\n";
  for (int i = 0; i < 65; ++i) text += "  - path: a.jsonl\n";
  EXPECT_THAT(found(axolotl(text), "datasets"), HasSubstr("not supported"));
}

TEST_F(Datasets, TheBatchOfAxolotlIsOfOneGpu) {
  for (const std::string text : {"micro_batch_size: 2\nbatch_size: 16\n", "batch_size: 16\nmicro_batch_size: 2\n"}) {
    const std::string deck = axolotl(text, 4).deck;
    EXPECT_THAT(deck, AllOf(HasSubstr("global = 64"), HasSubstr("2 sequences x 8 passes x 4 GPUs")));
  }
  EXPECT_THAT(axolotl("micro_batch_size: 2\ngradient_accumulation_steps: 3\n", 4).deck, HasSubstr("global = 24"));
  EXPECT_EQ(axolotl("micro_batch_size: 3\nbatch_size: 16\n", 4).count(Effect::unsupported), 1u);
  EXPECT_EQ(axolotl("batch_size: -2\n").count(Effect::unsupported), 1u);
  EXPECT_THAT(axolotl("batch_size: 16\n", 4).deck, HasSubstr("global = 64")) << "a micro-batch of 1 by default";
}

TEST_F(Datasets, LinearTargetsHoldBesideModules) {
  for (const std::string text : {"lora_target_linear: true\nlora_target_modules: [q_proj]\n",
                                 "lora_target_modules: [q_proj]\nlora_target_linear: true\n"}) {
    const Conversion out = axolotl("adapter: lora\n" + text);
    EXPECT_THAT(out.deck, HasSubstr("target_modules = all-linear"));
    EXPECT_EQ(out.count(Effect::unsupported), 0u);
  }
  EXPECT_EQ(
      axolotl("adapter: lora\nlora_target_modules: [lm_head]\nlora_target_linear: true\n").count(Effect::unsupported),
      1u);
  EXPECT_THAT(axolotl("adapter: lora\nlora_target_linear: false\nlora_target_modules: [q_proj]\n").deck,
              HasSubstr("target_modules = q_proj"));
}

TEST_F(Datasets, RopeOfAModelFolderStays) {
  const Conversion factory = of_text("l.yaml", "model_name_or_path: ./m\nrope_scaling: linear\n", "llamafactory");
  EXPECT_THAT(found(factory, "rope_scaling"), AllOf(HasSubstr("not supported"), HasSubstr("config.json")));
  const Conversion ax = axolotl("rope_scaling: {type: linear, factor: 2}\n");
  EXPECT_THAT(found(ax, "rope_scaling"), HasSubstr("not supported"));
  for (const std::string& deck : {factory.deck, ax.deck}) EXPECT_THAT(deck, Not(HasSubstr("\nrope_scaling")));
}

TEST_F(Datasets, OfTorchtune) {
  const std::string alpaca = "dataset:\n  _component_: torchtune.datasets.alpaca_dataset\n";
  EXPECT_THAT(torchtune(alpaca).deck, HasSubstr("train_on = all"));
  EXPECT_THAT(torchtune(alpaca + "  train_on_input: false\n").deck, Not(HasSubstr("train_on = ")));
  const std::string instruct = "dataset:\n  _component_: torchtune.datasets.instruct_dataset\n";
  EXPECT_THAT(torchtune(instruct).deck, Not(HasSubstr("train_on = ")));
  const Conversion files = torchtune(
      instruct + "  source: json\n  data_files: a.json\n  split: train[:5%]\n  column_map: {input: q, output: a}\n");
  EXPECT_THAT(files.deck, AllOf(HasSubstr("train = a.json"), HasSubstr("columns = prompt:q, response:a")));
  EXPECT_THAT(found(files, "dataset.split"), HasSubstr("not supported"));
  EXPECT_THAT(torchtune(alpaca + "  column_map: {instruction: q, input: x, output: a}\n").deck,
              HasSubstr("columns = prompt:q, query:x, response:a"));
}

TEST_F(Datasets, AnUnknownTypeLeavesTheFormatOpen) {
  const auto types = [this](const std::string& first, const std::string& second) {
    return axolotl("datasets:\n  - path: a.jsonl\n    type: " + first + "\n  - path: b.jsonl\n    type: " + second +
                   "\n");
  };
  for (const Conversion& out : {types("alpaca", "jeopardy"), types("jeopardy", "alpaca")}) {
    EXPECT_THAT(out.deck, HasSubstr("format = auto"));
    EXPECT_GT(out.count(Effect::unsupported), 0u);
  }
  EXPECT_THAT(types("alpaca", "alpaca").deck, HasSubstr("format = alpaca"));
  const std::string builder = "  - _component_: torchtune.datasets.";
  const Conversion two = torchtune("dataset:\n" + builder + "alpaca_dataset\n" + builder + "chat_dataset\n");
  EXPECT_THAT(two.deck, HasSubstr("format = auto"));
  EXPECT_THAT(found(two, "dataset.1._component_"), HasSubstr("not supported"));
}

TEST_F(Datasets, DataThatAreMeasuredAreValidation) {
  const std::string train = "datasets:\n  - path: a.jsonl\n    type: alpaca\n";
  const Conversion same = axolotl(train + "test_datasets:\n  - path: v.jsonl\n    type: alpaca\n    split: train\n");
  EXPECT_THAT(same.deck, AllOf(HasSubstr("\nvalidation = v.jsonl"), HasSubstr("format = alpaca")));
  EXPECT_EQ(same.count(Effect::unsupported) + same.count(Effect::unknown), 0u);
  const Conversion other = axolotl(train + "test_datasets:\n  - path: v.jsonl\n    type: completion\n");
  EXPECT_THAT(found(other, "test_datasets.0.type"), HasSubstr("not supported"));
  EXPECT_THAT(other.deck, HasSubstr("format = auto"));
  const std::string rows = "torchtune.datasets.instruct_dataset\n  data_files: ";
  const Conversion tune =
      torchtune("dataset:\n  _component_: " + rows + "a.json\ndataset_val:\n  _component_: " + rows +
                "v.json\nrun_val_every_n_steps: 25\n");
  EXPECT_THAT(tune.deck, AllOf(HasSubstr("train = a.json "), HasSubstr("validation = v.json ")));
  EXPECT_THAT(tune.deck, HasSubstr("[evaluation]\nevery_steps = 25"));
}

TEST_F(Datasets, AlpacaHasItsOwnPrompt) {
  const std::string alpaca = "datasets:\n  - path: a.jsonl\n    type: alpaca\n", chatml = "chat_template: chatml\n";
  for (const Conversion& out : {axolotl(alpaca + chatml), axolotl(chatml + alpaca)}) {
    EXPECT_THAT(out.deck, HasSubstr("template = alpaca"));
    EXPECT_THAT(found(out, "chat_template"), HasSubstr("not supported"));
  }
  EXPECT_THAT(axolotl("datasets:\n  - path: a.jsonl\n    type: chat_template\n" + chatml).deck,
              HasSubstr("template = chatml"));
  EXPECT_THAT(found(axolotl("chat_template_jinja: \"{{ messages }}\"\n"), "chat_template_jinja"),
              AllOf(HasSubstr("not supported"), HasSubstr("to a file")));
}

TEST_F(Datasets, TypesOfPreferencesNameTheirColumns) {
  const auto typed = [this](const std::string& rl, const std::string& type, const std::string& more = "") {
    return axolotl("rl: " + rl + "\ndatasets:\n  - path: a.jsonl\n    type: " + type + "\n" + more);
  };
  const Conversion intel = typed("dpo", "chatml.intel");
  EXPECT_THAT(intel.deck, AllOf(HasSubstr("format = preference"), HasSubstr("columns = prompt:question"),
                                HasSubstr("template = chatml"), HasSubstr("texts have no chat template")));
  EXPECT_THAT(typed("dpo", "llama3.argilla").deck,
              AllOf(HasSubstr("columns = prompt:instruction, chosen:chosen_response, rejected:rejected_response"),
                    HasSubstr("template = llama3")));
  EXPECT_THAT(typed("kto", "llama3.intel").deck,
              AllOf(HasSubstr("format = unpaired"), HasSubstr("columns = prompt:question")));
  const Conversion messages = typed("dpo", "chatml.ultra", "chat_template: llama3\n");
  EXPECT_THAT(messages.deck, AllOf(HasSubstr("format = preference"), HasSubstr("template = chatml"),
                                   Not(HasSubstr("columns")), Not(HasSubstr("texts have no"))));
  EXPECT_THAT(found(messages, "chat_template"), HasSubstr("not supported"));
  const Conversion own = typed("dpo", "chat_template.default", "    field_messages: talk\nchat_template: llama3\n");
  EXPECT_THAT(own.deck, AllOf(HasSubstr("columns = prompt:talk"), HasSubstr("template = llama3")));
  for (const std::string type : {"zephyr.nectar", "intel", "chatml", "chatml.chat_template.default", "llama3."}) {
    const Conversion other = typed("dpo", type);
    EXPECT_THAT(found(other, "datasets.0.type"), HasSubstr("not supported")) << type;
    EXPECT_THAT(other.deck, HasSubstr("\nformat = auto")) << type;
  }
  EXPECT_THAT(found(typed("kto", "chatml.argilla_chat"), "datasets.0.type"), HasSubstr("not supported"));
}

TEST_F(Datasets, RolloutsOfTorchtuneReadPrompts) {
  const std::string rows =
      "dataset:\n  _component_: torchtune.datasets.text_completion_dataset\n  source: a.jsonl\n  column: question\n";
  const std::string loss = "loss:\n  epsilon: 0.3\n  _component_: torchtune.";
  const Conversion grpo = torchtune(rows + loss + "dev.grpo.loss.GRPOSimpleLoss\nbatch_size: 2\ngrpo_samples: 8\n");
  EXPECT_THAT(grpo.deck, AllOf(HasSubstr("format = prompt "), HasSubstr("columns = prompt:question"),
                               HasSubstr("[grpo]\ngroup_size = 8"), HasSubstr("\nepsilon = 0.3")));
  EXPECT_THAT(grpo.deck, HasSubstr("global = 16")) << "completions";
  const Conversion ppo = torchtune(rows + loss + "rlhf.loss.PPOLoss\nbatch_size: 2\n");
  EXPECT_THAT(ppo.deck, AllOf(HasSubstr("format = prompt "), HasSubstr("clip = 0.3"), HasSubstr("global = 2 ")));
  EXPECT_THAT(torchtune(rows).deck, AllOf(HasSubstr("format = text"), HasSubstr("columns = text:question")));
}

TEST_F(Datasets, OfTrlAndTheAlignmentHandbook) {
  const auto trl = [this](const std::string& text) { return of_text("t.yaml", "output_dir: o\n" + text, "trl"); };
  EXPECT_THAT(trl("dataset_text_field: body\n").deck,
              AllOf(HasSubstr("columns = text:body"), Not(HasSubstr("text_column"))));
  EXPECT_THAT(trl("dataset_text_field: text\n").deck, Not(HasSubstr("columns")));
  const Conversion mixture =
      trl("dataset_mixture:\n  datasets:\n    - id: a/b\n      split: test\n      weight: 1.0\n    - id: c/d\n"
          "      weight: 0.5\n  test_split_size: 0.1\n");
  EXPECT_THAT(mixture.needs, Contains(HasSubstr("a/b, c/d")));
  EXPECT_THAT(mixture.deck, HasSubstr("validation_fraction = 0.1"));
  EXPECT_EQ(mixture.count(Effect::unsupported), 2u) << "a split and a share";
  EXPECT_EQ(mixture.count(Effect::unknown), 0u);
  EXPECT_EQ(trl("dataset_mixer: {a/b: 1.0}\n").count(Effect::unsupported), 0u);
  EXPECT_EQ(trl("dataset_mixer: {a/b: 0.5}\n").count(Effect::unsupported), 1u);
}

}  // namespace
}  // namespace llmtrain::test
