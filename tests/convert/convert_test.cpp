// Settings of other programs become decks: what several settings say together, defaults of the other program, keys that
// are left out.
#include "converted.hpp"
#include "core/error.hpp"

namespace llmtrain::test {
namespace {

using convert::Effect;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(ConvertTest, TheBatchIsAProduct) {
  const std::string text = "per_device_train_batch_size: 4\ngradient_accumulation_steps: 8\noutput_dir: out/a\n";
  EXPECT_THAT(of_text("a.yaml", text, "transformers").deck, HasSubstr("global = 32"));
  EXPECT_THAT(of_text("a.yaml", text, "transformers", 4).deck, HasSubstr("global = 128"));
  EXPECT_THAT(of_text("b.json", R"({"train_batch_size": 64, "gradient_accumulation_steps": 4})", "deepspeed", 2).deck,
              HasSubstr("micro = 8"));
  EXPECT_THAT(
      of_text("c.py", "training_config = TrainingConfig(world_size=4, batch_size=8, gradient_accumulation_steps=2)\n",
              "llm-trainer")
          .deck,
      HasSubstr("global = 64"));
  const std::string gpt = of_text("d.py", "batch_size = 12\ngradient_accumulation_steps = 5 * 8\n", "nanogpt", 8).deck;
  EXPECT_THAT(gpt, HasSubstr("gradient_accumulation_steps = 40")) << "nanoGPT's are of the whole job";
}

TEST_F(ConvertTest, StepsWinOverEpochsAndRatios) {
  const std::string deck =
      of_text("a.yaml", "num_train_epochs: 3\nmax_steps: 100\nwarmup_ratio: 0.1\nwarmup_steps: 7\n", "transformers")
          .deck;
  EXPECT_THAT(deck, HasSubstr("max_steps = 100"));
  EXPECT_THAT(deck, Not(HasSubstr("epochs = 3")));
  EXPECT_THAT(deck, HasSubstr("warmup_steps = 7"));
  EXPECT_THAT(deck, Not(HasSubstr("warmup_ratio = ")));
  const std::string other =
      of_text("a.yaml", "num_train_epochs: 2.5\nmax_steps: -1\nwarmup_steps: 0.03\n", "transformers").deck;
  EXPECT_THAT(other, HasSubstr("epochs = 2.5"));
  EXPECT_THAT(other, HasSubstr("warmup_ratio = 0.03"));
}

TEST_F(ConvertTest, DefaultsAreTheOtherProgramsOwn) {
  const std::string deck = of_text("a.json", "{\"output_dir\": \"out\"}", "transformers").deck;
  for (const std::string line :
       {"learning_rate = 5e-05", "name = linear", "weight_decay = 0", "epochs = 3", "compute = fp32", "micro = 8"}) {
    EXPECT_THAT(deck, HasSubstr(line));
  }
  EXPECT_THAT(of_text("a.py", "args = DPOConfig(output_dir='out')\n", "trl").deck, HasSubstr("learning_rate = 1e-06"));
  EXPECT_THAT(of_text("a.py", "args = RewardConfig(output_dir='out')\n", "trl").deck, HasSubstr("task = reward"));
  EXPECT_THAT(of_text("a.py", "args = GRPOConfig(beta=0.04)\n", "trl").deck, HasSubstr("loss = dapo"));
}

TEST_F(ConvertTest, TeachersAndTheirLosses) {
  const std::string gkd =
      of_text("a.py", "args = GKDConfig(teacher_model_name_or_path='big', beta=0.1, lmbda=0.25, seq_kd=False)\n", "trl")
          .deck;
  for (const std::string line : {"task = distill", "teacher = big", "loss = jsd", "beta = 0.1", "on_policy = 0.25",
                                 "cache = false", "temperature = 0.9", "max_new_tokens = 128"}) {
    EXPECT_THAT(gkd, HasSubstr(line));
  }
  EXPECT_THAT(of_text("a.py", "args = GKDConfig(seq_kd=True)\n", "trl").needs, Contains(HasSubstr("distill.teacher")));
  const std::string axolotl =
      of_text("a.yaml", "base_model: m\nkd_trainer: true\nkd_ce_alpha: 0.1\nkd_alpha: 1\nkd_temperature: 2\n",
              "axolotl")
          .deck;
  EXPECT_THAT(axolotl,
              AllOf(HasSubstr("task = distill"), HasSubstr("cross_entropy = 0.1"), HasSubstr("temperature = 2")));
  const std::string torchtune =
      of_text("b.yaml",
              "model:\n  _component_: torchtune.models.qwen2.qwen2_0_5b\nteacher_checkpointer:\n  checkpoint_dir: big\n"
              "kd_loss:\n  _component_: torchtune.modules.loss.ReverseKLLoss\nkd_ratio: 0.5\n",
              "torchtune")
          .deck;
  EXPECT_THAT(torchtune, AllOf(HasSubstr("task = distill"), HasSubstr("teacher = big"), HasSubstr("loss = reverse_kl"),
                               HasSubstr("cross_entropy = 1")));
}

TEST_F(ConvertTest, AdaptersTellTheTask) {
  const auto deck = [&](const std::string& kind) {
    return of_text("adapter_config.json", R"({"peft_type": "LORA", "r": 8, "task_type": ")" + kind + "\"}", "peft")
        .deck;
  };
  EXPECT_THAT(deck("SEQ_CLS"), AllOf(HasSubstr("task = classify"), HasSubstr("kind = sequence")));
  EXPECT_THAT(deck("TOKEN_CLS"), AllOf(HasSubstr("task = classify"), HasSubstr("kind = token")));
  EXPECT_THAT(deck("CAUSAL_LM"), Not(HasSubstr("classify")));
}

TEST_F(ConvertTest, PrecisionAndIntervals) {
  EXPECT_THAT(of_text("a.yaml", "fp16: true\nbf16: false\ntf32: true\n", "transformers").deck,
              HasSubstr("compute = fp16"));
  EXPECT_THAT(of_text("a.yaml", "bf16: true\n", "transformers").deck, HasSubstr("compute = bf16"));
  EXPECT_THAT(of_text("a.py", "t = TrainingConfig(use_amp=True, amp_dtype='bfloat16')\n", "llm-trainer").deck,
              HasSubstr("compute = bf16"));
  const std::string epochs = of_text("a.yaml", "eval_strategy: epoch\nsave_strategy: no\n", "transformers").deck;
  EXPECT_THAT(epochs, HasSubstr("[evaluation]\nevery_epochs = 1"));
  EXPECT_THAT(epochs, HasSubstr("[checkpoint]\nevery_steps = 0"));
  EXPECT_THAT(of_text("a.yaml", "eval_strategy: steps\neval_steps: 0.25\nmax_steps: 100\n", "transformers").deck,
              HasSubstr("[evaluation]\nevery_steps = 25"));
}

TEST_F(ConvertTest, DeepSpeedFilesAreReadToo) {
  file("ds.json",
       R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}, "bf16": {"enabled": "auto"}})");
  const convert::Conversion out = of_text("a.yaml", "deepspeed: ds.json\n", "transformers");
  EXPECT_THAT(out.deck, HasSubstr("zero = 3"));
  EXPECT_THAT(out.deck, HasSubstr("offload_parameters = cpu"));
  EXPECT_EQ(out.count(Effect::unknown), 0u);
}

TEST_F(ConvertTest, EveryKeyIsReported) {
  const convert::Conversion out =
      of_text("a.yaml", "lerning_rate: 1e-4\nneftune_noise_alpha: 5\nhub_token: x\nseed: 7\npush_to_hub: false\n",
              "transformers");
  ASSERT_EQ(out.findings.size(), 5u);
  EXPECT_EQ(out.findings[0].effect, Effect::unknown);
  EXPECT_THAT(out.findings[0].text, HasSubstr("did you mean learning_rate?"));
  EXPECT_EQ(out.findings[0].line, 1);
  EXPECT_EQ(out.findings[1].effect, Effect::unsupported);
  EXPECT_EQ(out.findings[2].effect, Effect::no_effect);
  EXPECT_EQ(out.findings[3].effect, Effect::mapped);
  EXPECT_THAT(out.findings[3].text, HasSubstr("run.seed = 7"));
  EXPECT_EQ(out.findings[4].effect, Effect::no_effect) << "off, as it always is here";
  EXPECT_THAT(out.deck, HasSubstr("Left out: 'lerning_rate' (line 1)"));
  const convert::Conversion wrong =
      of_text("a.yaml", "learning_rate: fast\noptim: galore_adamw\nseed: [1]\n", "transformers");
  EXPECT_EQ(wrong.count(Effect::unsupported), 3u) << "values that no key can have are reported";
}

TEST_F(ConvertTest, TheProgramIsRecognised) {
  const auto name = [this](const std::string& file_name, const std::string& text) {
    return std::string(of_text(file_name, text, "auto").system->name);
  };
  EXPECT_EQ(name("a.json", R"({"zero_optimization": {"stage": 2}})"), "deepspeed");
  EXPECT_EQ(name("a.yaml", "stage: sft\nfinetuning_type: lora\ncutoff_len: 512\n"), "llamafactory");
  EXPECT_EQ(name("a.yaml", "base_model: x\nsequence_len: 512\nmicro_batch_size: 1\n"), "axolotl");
  EXPECT_EQ(name("a.yaml", "model:\n  _component_: torchtune.models.llama3.lora_llama3_8b\nepochs: 1\n"), "torchtune");
  EXPECT_EQ(name("a.py", "block_size = 64\nn_layer = 4\nmax_iters = 10\n"), "nanogpt");
  EXPECT_EQ(name("a.py", "model_config = ModelConfig(d_model=16, n_heads=2)\n"), "llm-trainer");
  EXPECT_THROW(of_text("a.json", "{}", "lamafactory"), UserError);
}

TEST_F(ConvertTest, ReferencesAndTheEnvironment) {
  const std::string deck =
      of_text("a.yaml",
              "output_dir: /tmp/run\nmetric_logger:\n  log_dir: ${output_dir}/logs\ncheckpointer:\n"
              "  checkpoint_dir: ${oc.env:MODELS}/m\n",
              "torchtune")
          .deck;
  EXPECT_THAT(deck, HasSubstr("path = ${MODELS}/m"));
  EXPECT_THAT(deck, HasSubstr("output = /tmp"));
}

TEST_F(ConvertTest, AccelerateTellsTheLaunch) {
  const convert::Conversion out = of_text("a.yaml",
                                          "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n"
                                          "deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu}\n"
                                          "mixed_precision: bf16\nnum_processes: 8\n",
                                          "auto");
  EXPECT_EQ(out.system->name, "accelerate");
  EXPECT_THAT(out.deck,
              AllOf(HasSubstr("zero = 3"), HasSubstr("offload_optimizer = cpu"), HasSubstr("compute = bf16")));
  EXPECT_EQ(out.count(Effect::unknown) + out.count(Effect::unsupported), 0u);
}

TEST_F(ConvertTest, FilesOfOtherKindsAreRefused) {
  const auto error = [this](const std::string& text, const std::string& from) -> std::string {
    try {
      of_text("a.json", text, from);
    } catch (const UserError& failure) {
      EXPECT_EQ(failure.code(), ExitCode::bad_content);
      return failure.what();
    }
    return "";
  };
  const std::string model = R"({"architectures": ["X"], "model_type": "x", "hidden_size": 8, "num_hidden_layers": 2})";
  EXPECT_THAT(error(model, "auto"), HasSubstr("config.json"));
  EXPECT_EQ(error(model, "transformers"), "") << "a program that is named is believed";
  EXPECT_THAT(error(R"({"log_history": [], "epoch": 1, "global_step": 3})", "auto"), HasSubstr("trainer_state"));
  EXPECT_EQ(error(R"({"learning_rate": 1, "seed": 1, "oops": 1})", "auto"), "");
}

TEST_F(ConvertTest, AdaptersHaveTheDefaultsOfTheirProgram) {
  const std::string trl = of_text("a.yaml", "output_dir: o\nuse_peft: true\n", "trl").deck;
  EXPECT_THAT(trl, AllOf(HasSubstr("\nr = 16"), HasSubstr("alpha = 32"), HasSubstr("target_modules = q_proj, v_proj")));
  const std::string peft = of_text("a.py", "config = LoraConfig(r=4)\nargs = SFTConfig(output_dir='o')\n", "trl").deck;
  EXPECT_THAT(peft, AllOf(HasSubstr("\nr = 4"), HasSubstr("alpha = 8"), HasSubstr("finetuning = lora")));
  EXPECT_THAT(of_text("a.yaml", "output_dir: o\n", "trl").deck, Not(HasSubstr("lora")));
}

TEST_F(ConvertTest, AdaptersStartAsByTheirProgram) {
  const auto peft = [&](const std::string& settings) {
    return of_text("a.py", "config = LoraConfig(" + settings + ")\nargs = SFTConfig(output_dir='o')\n", "trl").deck;
  };
  EXPECT_THAT(peft("init_lora_weights='pissa'"), HasSubstr("\ninit = pissa"));
  EXPECT_THAT(peft("init_lora_weights='pissa_niter_16'"), HasSubstr("\ninit = pissa"));
  EXPECT_THAT(peft("init_lora_weights='olora'"), HasSubstr("\ninit = olora"));
  EXPECT_THAT(peft("init_lora_weights='eva'"), Not(HasSubstr("\ninit =")));
  const std::string loftq = "init_lora_weights='loftq', loftq_config={'loftq_bits': 4, 'loftq_iter': 1}";
  EXPECT_THAT(peft(loftq), AllOf(HasSubstr("\ninit = loftq"), HasSubstr("\nbits = 4")));
  EXPECT_THAT(of_text("a.yaml", "finetuning_type: lora\npissa_init: true\n", "llamafactory").deck,
              HasSubstr("\ninit = pissa"));
}

TEST_F(ConvertTest, AxolotlWarmsUpAndSavesByItself) {
  const auto deck = [this](const std::string& text) {
    return of_text("a.yaml", "base_model: m\nnum_epochs: 2\n" + text, "axolotl").deck;
  };
  EXPECT_THAT(deck(""), AllOf(HasSubstr("warmup_ratio = 0.03"), HasSubstr("[checkpoint]\nevery_epochs = 1")));
  EXPECT_THAT(deck("warmup_steps: 0\n"), Not(HasSubstr("warmup")));
  EXPECT_THAT(deck("warmup_ratio: 0.1\n"), HasSubstr("warmup_ratio = 0.1"));
  EXPECT_THAT(deck("save_steps: 70\n"), HasSubstr("[checkpoint]\nevery_steps = 70"));
}

TEST_F(ConvertTest, RolloutsTellTheLengthOfASample) {
  const auto grpo = [this](const std::string& text) {
    return of_text("a.yaml", "num_generations: 4\nmax_completion_length: 1024\n" + text, "trl");
  };
  EXPECT_THAT(grpo("max_prompt_length: 512\n").deck, HasSubstr("sequence_length = 1536"));
  const std::vector<std::string> needs = grpo("").needs;
  EXPECT_THAT(needs, Contains(HasSubstr("batch.sequence_length")));
  EXPECT_THAT(needs, Contains(HasSubstr("rewards.functions")));
}

TEST_F(ConvertTest, LossesOfPreferences) {
  const convert::Conversion simpo = of_text("a.yaml", "gamma_beta_ratio: 0.5\nbeta: 2.5\noutput_dir: o\n", "trl");
  EXPECT_THAT(simpo.deck, AllOf(HasSubstr("loss = simpo"), HasSubstr("simpo_gamma = 1.25")));
  EXPECT_THAT(of_text("a.yaml", "loss: {_component_: torchtune.rlhf.loss.RSOLoss, gamma: 0.2}\n", "torchtune").deck,
              AllOf(HasSubstr("task = dpo"), HasSubstr("loss = hinge"), HasSubstr("beta = 0.2")));
}

TEST_F(ConvertTest, LossesOfFinetuning) {
  const auto deck = [&](const std::string& text, const std::string& from) {
    return of_text("a.yaml", text, from).deck;
  };
  const std::string trl = "trainer: sft\nloss_type: ", factory = "stage: sft\nuse_dft_loss: ";
  EXPECT_THAT(deck(trl + "dft\n", "trl"), HasSubstr("task = dft"));
  EXPECT_THAT(deck(trl + "nll\n", "trl"), HasSubstr("task = sft"));
  EXPECT_THAT(deck(factory + "true\n", "llamafactory"), HasSubstr("task = dft"));
  EXPECT_THAT(deck(factory + "false\n", "llamafactory"), HasSubstr("task = sft"));
  EXPECT_THAT(deck("stage: dpo\nuse_dft_loss: true\n", "llamafactory"), HasSubstr("task = dpo"));
}

}  // namespace
}  // namespace llmtrain::test
