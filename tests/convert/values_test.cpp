// Values that a deck cannot have are reported, and what the settings do not say is not made up.
#include "converted.hpp"
#include "core/error.hpp"

namespace llmtrain::test {
namespace {

using convert::Conversion;
using convert::Effect;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(ConvertTest, ValuesOfNoUseAreNotSupported) {
  for (const std::string line :
       {"per_device_train_batch_size: 4.5", "per_device_train_batch_size: '4 '", "per_device_train_batch_size: 0x10",
        "per_device_train_batch_size: 0", "gradient_accumulation_steps: 9e15", "warmup_steps: abc",
        "logging_strategy: epoch", "num_train_epochs: -2", "output_dir: \"out\\n[run]\"", "project: a/b"}) {
    const Conversion out = of_text("a.yaml", "report_to: wandb\n" + line + "\n", "transformers");
    ASSERT_EQ(out.findings.size(), 2u);
    EXPECT_EQ(out.findings[1].effect, Effect::unsupported) << line << ": " << out.findings[1].text;
  }
  EXPECT_THAT(of_text("a.yaml", "per_device_train_batch_size: 4.5\n", "transformers").findings[0].text,
              HasSubstr("'4.5': must be a whole number above 0"));
  const Conversion control =
      of_text("a.yaml", "per_device_train_batch_size: 4\nwarmup_steps: 3\noutput_dir: out/a\n", "transformers");
  EXPECT_EQ(control.count(Effect::mapped), 3u);
}

TEST_F(ConvertTest, NoneInAListIsNone) {
  const auto checked = [&](const std::string& name, const std::string& text, const std::string& from) {
    Conversion out = of_text(name, text, from);
    EXPECT_EQ(out.count(Effect::unsupported) + out.count(Effect::unknown), 0u) << name << ": " << text;
    for (const auto& finding : out.findings) EXPECT_THAT(finding.text, Not(HasSubstr("null"))) << text;
    return out.deck;
  };
  const std::string start = "output_dir: o\nmax_steps: 10\n";
  for (const std::string item :
       {"none", "None", "NONE", "null", "Null", "~", "'none'", "\"none\"", "no", "off", "false"}) {
    const std::string alone = checked("a.yaml", start + "report_to: [" + item + "]\n", "transformers");
    EXPECT_THAT(alone, Not(HasSubstr("sinks ="))) << item;
    const std::string both = checked("a.yaml", start + "report_to:\n- " + item + "\n- tensorboard\n", "transformers");
    EXPECT_THAT(both, HasSubstr("sinks = hdf5, jsonl, tensorboard")) << "the control: " << item;
  }
  for (const std::string item : {"null", "\"none\"", "\"None\""}) {
    const std::string json =
        checked("a.json", R"({"output_dir": "o", "report_to": [)" + item + R"(, "wandb"]})", "trl");
    EXPECT_THAT(json, HasSubstr("sinks = hdf5, jsonl, wandb"));
    EXPECT_THAT(checked("a.json", R"({"output_dir": "o", "report_to": [)" + item + "]}", "trl"),
                Not(HasSubstr("sinks =")));
  }
  EXPECT_THAT(checked("a.toml", "output_dir = 'o'\nreport_to = ['none']\n", "trl"), Not(HasSubstr("sinks =")));
  // other keys: of ours, of none of ours, and with a rule
  const std::string adapter = "base_model: m\nadapter: lora\nlora_modules_to_save: ";
  EXPECT_THAT(checked("a.yaml", adapter + "[none]\n", "axolotl"), Not(HasSubstr("modules_to_save =")));
  EXPECT_THAT(checked("a.yaml", adapter + "['none']\n", "axolotl"), Not(HasSubstr("modules_to_save =")));
  EXPECT_THAT(checked("a.yaml", adapter + "[~, embed_tokens]\n", "axolotl"),
              HasSubstr("modules_to_save = embed_tokens"));
  checked("a.yaml", "base_model: m\nplugins: [none]\nlora_target_modules: [null]\n", "axolotl");
  EXPECT_EQ(of_text("a.yaml", "base_model: m\nplugins: [x]\n", "axolotl").count(Effect::unsupported), 1u)
      << "the control";
}

TEST_F(ConvertTest, NullLeavesNoGapWherePlacesCount) {
  const auto unsupported = [&](const std::string& text, const std::string& from = "trl") {
    return of_text("a.yaml", "output_dir: o\n" + text, from).count(Effect::unsupported);
  };
  const std::string dpo = "loss_type: [sigmoid, sft]\nloss_weights: [1.0, 0.5]\n";
  EXPECT_EQ(unsupported(dpo), 0u) << "the control";
  for (const std::string null : {"null", "none", "~"}) {
    EXPECT_EQ(unsupported("loss_type: [" + null + ", sigmoid]\nloss_weights: [1.0, 0.5]\n"), 1u) << null;
    EXPECT_EQ(unsupported("loss_type: [sigmoid, sft]\nloss_weights: [1.0, " + null + "]\n"), 1u) << null;
    EXPECT_EQ(unsupported("num_generations: 4\nreward_weights: [" + null + ", 1.0, 2.0]\n"), 1u) << null;
  }
  EXPECT_EQ(unsupported("num_generations: 4\nreward_weights: [1.0, 2.0]\n"), 0u) << "the control";
}

TEST_F(ConvertTest, AListOfAllIsAllLinear) {
  const std::string start = "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_target: ";
  for (const std::string all : {"all", "[all]", "[all, none]", "[all, 'none']"}) {
    EXPECT_THAT(of_text("a.yaml", start + all + "\n", "llamafactory").deck, HasSubstr("target_modules = all-linear "))
        << all;
  }
  EXPECT_THAT(of_text("a.yaml", start + "[q_proj, none]\n", "llamafactory").deck, HasSubstr("target_modules = q_proj"))
      << "the control";
}

TEST_F(ConvertTest, AShareOfTheStepsNeedsTheirNumber) {
  const std::string share = "logging_steps: 0.05\n";
  EXPECT_THAT(of_text("a.yaml", share + "max_steps: 100\n", "transformers").deck, HasSubstr("[log]\nevery_steps = 5"));
  const Conversion out = of_text("a.yaml", share + "num_train_epochs: 2\n", "transformers");
  EXPECT_EQ(out.findings[0].effect, Effect::unsupported);
}

TEST_F(ConvertTest, NoRowsAreHeldOutUnlessTheSettingsSaySo) {
  const std::string none = "validation_fraction = 0 ";
  EXPECT_THAT(of_text("a.yaml", "base_model: m\nmicro_batch_size: 1\n", "axolotl").deck, HasSubstr(none));
  EXPECT_THAT(of_text("a.yaml", "epochs: 1\nbatch_size: 2\n", "torchtune").deck, HasSubstr(none));
  const Conversion trl = of_text("a.yaml", "output_dir: o\neval_strategy: steps\n", "trl");
  EXPECT_THAT(trl.deck, HasSubstr(none));
  EXPECT_THAT(trl.deck, HasSubstr("# validation = ...  required"));
  const Conversion split = of_text("a.yaml", "base_model: m\nval_set_size: 0.05\n", "axolotl");
  EXPECT_THAT(split.deck, HasSubstr("validation_fraction = 0.05"));
  EXPECT_THAT(split.deck, Not(HasSubstr("at_end = false")));
}

TEST_F(ConvertTest, OnePrecisionHolds) {
  const std::string fp16 = "output_dir: o\nfp16: true\n";
  const Conversion both = of_text("a.yaml", fp16 + "bf16: true\n", "transformers");
  EXPECT_EQ(both.findings[1].effect, Effect::unsupported) << "Transformers refuses both";
  EXPECT_THAT(both.deck, HasSubstr("compute = bf16"));
  for (const std::string from : {"transformers", "trl"}) {  // TRL computes in bf16 unless the settings have fp16
    const Conversion one = of_text("a.yaml", fp16, from);
    EXPECT_EQ(one.findings[1].effect, Effect::mapped);
    EXPECT_THAT(one.deck, HasSubstr("compute = fp16"));
  }
  EXPECT_THAT(of_text("a.yaml", "output_dir: o\n", "trl").deck, HasSubstr("compute = bf16"));
}

TEST_F(ConvertTest, AConstantScheduleHasNoWarmup) {
  const std::string warm = "warmup_ratio: 0.1\nwarmup_steps: 5\nlr_scheduler_type: constant";
  const Conversion out = of_text("a.yaml", warm + "\n", "transformers");
  EXPECT_EQ(out.count(Effect::no_effect), 2u);
  EXPECT_THAT(out.deck, Not(HasSubstr("warmup")));
  const Conversion control = of_text("a.yaml", warm + "_with_warmup\n", "transformers");
  EXPECT_EQ(control.count(Effect::no_effect), 0u);
  EXPECT_THAT(control.deck, HasSubstr("warmup_steps = 5"));
}

TEST_F(ConvertTest, StepsOfAnEpochAreThoseOfARunOfOne) {
  const auto torchtune = [this](const std::string& text) {
    return of_text("t.yaml", "max_steps_per_epoch: 25\n" + text, "torchtune");
  };
  EXPECT_THAT(torchtune("epochs: 1\n").deck, HasSubstr("max_steps = 25"));
  EXPECT_THAT(torchtune("epochs: 1\n").deck, Not(HasSubstr("epochs = 1")));
  const Conversion more = torchtune("epochs: 3\n");
  EXPECT_EQ(more.findings[0].effect, Effect::unsupported);
  EXPECT_THAT(more.deck, HasSubstr("epochs = 3"));
  EXPECT_THAT(more.deck, Not(HasSubstr("max_steps = ")));
}

TEST_F(ConvertTest, AKeyThatIsFalseTellsNoTask) {
  EXPECT_THAT(of_text("a.yaml", "base_model: m\nreward_model: false\n", "axolotl").deck, HasSubstr("task = sft"));
  EXPECT_THAT(of_text("a.yaml", "base_model: m\nreward_model: true\n", "axolotl").deck, HasSubstr("task = reward"));
}

TEST_F(ConvertTest, NanoGptStartsFromWeights) {
  const Conversion out = of_text("a.py",
                                 "import time\ninit_from = 'gpt2-xl'\ndataset = 'shakespeare'\nmax_iters = 2 * 512\n"
                                 "lr_decay_iters = 1024\nwandb_run_name = 'ft-' + str(time.time())\n",
                                 "nanogpt");
  EXPECT_THAT(out.deck, HasSubstr("path = openai-community/gpt2-xl"));
  EXPECT_THAT(out.deck, Not(HasSubstr("n_layers")));
  EXPECT_THAT(out.deck, HasSubstr("max_steps = 1024"));
  EXPECT_THAT(out.deck, HasSubstr("llmtool import data/shakespeare/train.bin"));
  EXPECT_EQ(out.findings[3].effect, Effect::mapped) << "the decay ends with the run";
  EXPECT_EQ(out.findings[4].effect, Effect::unsupported);
  EXPECT_THAT(out.findings[4].text, HasSubstr("not readable: "));
  EXPECT_THAT(out.findings[4].text, HasSubstr(":6: "));
  EXPECT_THAT(of_text("a.py", "init_from = 'scratch'\n", "nanogpt").deck, HasSubstr("n_layers = 12"));
  EXPECT_EQ(of_text("a.py", "max_iters = 5\nlr_decay_iters = 9\n", "nanogpt").findings[1].effect, Effect::unsupported);
  EXPECT_THROW(of_text("a.py", "learning_rate = rate()[0]\n", "nanogpt"), UserError) << "results depend on it";
}

TEST_F(ConvertTest, DeepSpeedWarmsUpByTheLogarithm) {
  const auto scheduler = [this](const std::string& more) {
    return of_text("a.json", R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5)" + more + "}}}",
                   "deepspeed");
  };
  EXPECT_EQ(scheduler("").count(Effect::unsupported), 1u);
  EXPECT_EQ(scheduler(R"(, "warmup_type": "log")").count(Effect::unsupported), 1u);
  const Conversion linear = scheduler(R"(, "warmup_type": "linear")");
  EXPECT_EQ(linear.count(Effect::unsupported), 0u);
  EXPECT_THAT(linear.deck, HasSubstr("warmup_steps = 5"));
}

TEST_F(ConvertTest, CommentsOfTheBatchAreTrue) {
  const std::string settings =
      R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4})";
  EXPECT_THAT(of_text("a.json", settings, "deepspeed").deck, HasSubstr("4 sequences x 4 passes x 4 GPUs"));
  const std::string other = of_text("a.json", settings, "deepspeed", 8).deck;
  EXPECT_THAT(other, HasSubstr("64 is not 4 sequences x 4 passes x 8 GPUs = 128"));
  EXPECT_THAT(other, Not(HasSubstr("; 4 sequences")));
}

TEST_F(ConvertTest, FilesWithoutSettingsAreErrors) {
  for (const std::string name : {"a.yaml", "a.ini", "a.py", "a.json"}) {
    EXPECT_THROW(of_text(name, name == "a.json" ? "{}" : "", "auto"), UserError) << name;
  }
}

TEST_F(ConvertTest, PackingHasAStrategy) {
  const auto deck = [this](const std::string& text) { return of_text("a.yaml", "output_dir: o\n" + text, "trl").deck; };
  EXPECT_THAT(deck("packing: true\npacking_strategy: wrapped\n"), HasSubstr("packing = wrap"));
  EXPECT_THAT(deck("packing_strategy: wrapped\npacking: true\n"), HasSubstr("packing = wrap"));
  EXPECT_THAT(deck("packing: true\n"), HasSubstr("packing = best_fit"));
  EXPECT_THAT(deck("packing_strategy: wrapped\n"), Not(HasSubstr("packing = wrap")));
}

TEST_F(ConvertTest, ValuesThatSetNothingAreNotMapped) {
  const Conversion out = of_text("a.yaml", "load_in_4bit: false\nload_in_8bit: true\noutput_dir: o\n", "trl");
  EXPECT_EQ(out.findings[0].effect, Effect::no_effect);
  EXPECT_EQ(out.findings[1].effect, Effect::mapped);
  const Conversion betas =
      of_text("a.json", R"({"optimizer": {"params": {"betas": "auto", "lr": "auto"}}})", "deepspeed");
  EXPECT_EQ(betas.count(Effect::no_effect), 2u);
  const std::string plugins = "base_model: m\nplugins:\n  - axolotl.integrations.liger.LigerPlugin\n";
  EXPECT_EQ(of_text("a.yaml", plugins, "axolotl").count(Effect::unsupported), 0u);
  EXPECT_EQ(of_text("a.yaml", plugins + "  - my.Plugin\n", "axolotl").count(Effect::unsupported), 1u);
}

TEST_F(ConvertTest, AValidationSplitIsAShareOrAName) {
  const auto split = [this](const std::string& value) {
    return of_text("a.py", "data = DataConfig(dataset_name='d', validation_split=" + value + ")\n", "llm-trainer");
  };
  EXPECT_THAT(split("0.2").deck, HasSubstr("validation_fraction = 0.2"));
  EXPECT_THAT(split("'validation'").deck, HasSubstr("# validation = ...  required"));
}

}  // namespace
}  // namespace llmtrain::test
