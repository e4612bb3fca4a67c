#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

/// Differences from a resolved deck, by their effect.
struct Changes {
  std::vector<std::string> breaking, applied;
};
Changes changes_since(const Config& config, const std::string& resolved_deck) {
  Changes changes;
  for (const DeckDifference& difference : differences(config, resolved_deck, "recorded")) {
    const bool applies = difference.effect == DeckDifference::Effect::applies;
    if (difference.effect == DeckDifference::Effect::names_files) continue;
    (applies ? changes.applied : changes.breaking).push_back(difference.text);
  }
  return changes;
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr std::string_view smallest =
    "[run]\nmax_steps = 10\n[model]\nd_model = 64\nn_layers = 2\nn_heads = 4\n[data]\ntrain = "
    "builtin:stories\n[batch]\n"
    "sequence_length = 32\n";

Config load(const std::vector<std::string>& arguments, std::string_view text = smallest) {
  return load_config(text, "inputs/tiny.ini", arguments);
}

std::string errors_of(const std::vector<std::string>& arguments, std::string_view text = smallest) {
  try {
    load(arguments, text);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return "no error";
}

// A run may have begun with a folder of this name, which is elsewhere now; only who reads files must find it.
TEST(Config, AWordMayNameTheFolderOfATokenizerThatIsGone) {
  const std::vector<std::string> words = {"data.tokenizer=chars"};
  for (const DeckFiles files : {DeckFiles::recorded, DeckFiles::trust}) {
    EXPECT_TRUE(load_config(smallest, "d.ini", words, files).data.has_tokenizer_files());
  }
  EXPECT_FALSE(load_config(smallest, "d.ini", {}, DeckFiles::recorded).data.has_tokenizer_files());
  try {
    load_config(smallest, "d.ini", words, DeckFiles::examine_data);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    EXPECT_THAT(error.what(), HasSubstr("command line: data.tokenizer: 'chars' is not one of char, bytes, bpe (did you "
                                        "mean char?), and there is no file or folder of this name"));
  }
}

/// Without comments.
std::string values_of(const std::string& deck) {
  std::istringstream lines(deck);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    line = line.substr(0, line.find(" ; "));
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

TEST(Config, HasTheDocumentedDefaults) {
  const Config c = load({});
  EXPECT_EQ(c.run.name, "tiny");
  EXPECT_EQ(c.run.output, "runs");
  EXPECT_EQ(c.run.seed, 42);
  EXPECT_EQ(c.model.family, ModelConfig::Family::gpt2);
  EXPECT_EQ(c.model.initializer_std, 0.02);
  EXPECT_TRUE(c.model.pre_norm);
  EXPECT_EQ(c.batch.micro, 1);
  EXPECT_EQ(c.batch.global, 1);
  EXPECT_EQ(c.batch.gradient_accumulation_steps, 1);
  EXPECT_EQ(c.data.packing, DataConfig::Packing::wrap);
  EXPECT_EQ(c.data.validation_fraction, 0.1);
  EXPECT_EQ(c.data.cache, "runs/cache");
  EXPECT_TRUE(c.data.shuffle);
  EXPECT_EQ(c.optimizer.beta1, 0.9);
  EXPECT_EQ(c.optimizer.beta2, 0.999);
  EXPECT_EQ(c.optimizer.epsilon, 1e-8);
  EXPECT_EQ(c.optimizer.weight_decay, 0.01);
  EXPECT_EQ(c.optimizer.max_grad_norm, 1.0);
  EXPECT_EQ(c.schedule.name, ScheduleConfig::Name::constant);
  EXPECT_EQ(c.schedule.learning_rate, 1e-3);
  EXPECT_EQ(c.parallel.zero, 1);
  EXPECT_EQ(c.evaluation.every_steps, 500);
  EXPECT_TRUE(c.evaluation.at_end);
  EXPECT_EQ(c.log.every_steps, 10);
  EXPECT_THAT(c.notes, IsEmpty());
}

TEST(Config, FamiliesSetWhatIsNotGiven) {
  const ModelConfig gpt2 = load({}).model;
  EXPECT_EQ(gpt2.norm, ModelConfig::Norm::layernorm);
  EXPECT_EQ(gpt2.activation, ModelConfig::Activation::gelu_tanh);
  EXPECT_EQ(gpt2.positions, ModelConfig::Positions::learned);
  EXPECT_TRUE(gpt2.bias);
  EXPECT_TRUE(gpt2.tie_embeddings);
  EXPECT_EQ(gpt2.d_ff, 256);
  EXPECT_EQ(gpt2.n_kv_heads, 4);
  EXPECT_EQ(gpt2.head_dim, 16);
  EXPECT_EQ(gpt2.max_seq_len, 32);

  const ModelConfig llama = load({"model.family=llama"}).model;
  EXPECT_EQ(llama.norm, ModelConfig::Norm::rmsnorm);
  EXPECT_EQ(llama.norm_epsilon, 1e-5);
  EXPECT_EQ(llama.activation, ModelConfig::Activation::swiglu);
  EXPECT_EQ(llama.positions, ModelConfig::Positions::rope);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_FALSE(llama.bias);
  EXPECT_FALSE(llama.tie_embeddings);
  EXPECT_EQ(llama.d_ff, 192);  // 170.67 rounded up to a multiple of 64
  // 8/3 of 4096 is 10922.67
  EXPECT_EQ(load({"model.family=llama", "model.d_model=4096", "model.n_heads=32"}).model.d_ff, 10944);

  const ModelConfig mixed = load({"model.family=llama", "model.positions=learned", "model.bias=true", "model.d_ff=100",
                                  "model.n_kv_heads=2", "model.head_dim=24", "model.max_seq_len=50"})
                                .model;
  EXPECT_EQ(mixed.positions, ModelConfig::Positions::learned);
  EXPECT_TRUE(mixed.bias);
  EXPECT_EQ(mixed.d_ff, 100);
  EXPECT_EQ(mixed.n_kv_heads, 2);
  EXPECT_EQ(mixed.head_dim, 24);
  EXPECT_EQ(mixed.max_seq_len, 50);
}

TEST(Config, FamiliesThatDescendFromLlama) {
  EXPECT_EQ(load({"model.family=mistral"}).model.sliding_window, 4096);

  const ModelConfig qwen2 = load({"model.family=qwen2"}).model;
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.bias || qwen2.attention_output_bias || qwen2.mlp_bias);
  EXPECT_EQ(qwen2.rope_theta, 1e6);
  EXPECT_EQ(qwen2.norm_epsilon, 1e-6);
  EXPECT_FALSE(load({"model.family=qwen2", "model.bias=false"}).model.qkv_bias) << "bias speaks for all";
  EXPECT_TRUE(load({"model.family=llama", "model.bias=true"}).model.mlp_bias);

  EXPECT_TRUE(load({"model.family=qwen3"}).model.qk_norm);

  const ModelConfig gemma2 = load({"model.family=gemma2", "model.n_layers=5"}).model;
  EXPECT_TRUE(gemma2.sandwich_norm && gemma2.zero_centered_norm && gemma2.tie_embeddings);
  EXPECT_EQ(gemma2.activation, ModelConfig::Activation::geglu_tanh);
  EXPECT_EQ(gemma2.embedding_scale, 8);
  EXPECT_EQ(gemma2.query_pre_attn_scalar, 16);
  EXPECT_EQ(gemma2.attention_softcap, 50);
  EXPECT_EQ(gemma2.final_softcap, 30);
  EXPECT_THAT(gemma2.sliding_window_layers, ElementsAre(0, 2, 4));
  EXPECT_EQ(gemma2.window_of_layer(2), 4096);
  EXPECT_EQ(gemma2.window_of_layer(3), 0);
  const ModelConfig gemma3 = load({"model.family=gemma3", "model.n_layers=7"}).model;
  EXPECT_THAT(gemma3.sliding_window_layers, ElementsAre(0, 1, 2, 3, 4, 6));
  EXPECT_TRUE(gemma3.has_local_rope(4) && !gemma3.has_local_rope(5) && gemma3.has_rope(5));
  const ModelConfig smollm3 = load({"model.family=smollm3", "model.n_layers=5"}).model;
  EXPECT_TRUE(smollm3.has_rope(2) && !smollm3.has_rope(3) && smollm3.has_rope(4));
  const ModelConfig falcon = load({"model.family=falcon", "model.n_layers=5"}).model;
  EXPECT_TRUE(falcon.parallel_residual && falcon.shared_norm);
  EXPECT_EQ(load({"model.family=phi4"}).model.family, ModelConfig::Family::phi3);
}

TEST(Config, EveryFamilyResolvesToItself) {
  for (std::string_view family : enum_names<ModelConfig::Family>) {
    const std::string deck = write_deck(load({"model.family=" + std::string(family)}));
    EXPECT_EQ(values_of(write_deck(load_config(deck, "deck.ini"))), values_of(deck));
  }
}

TEST(Config, LayersAndScalingsResolveToThemselves) {
  std::string factors;
  for (int i = 0; i < 8; ++i) factors += " " + std::to_string(1.0 + i / 7.0);
  const Config c = load({"model.family=qwen2", "model.n_layers=12", "model.sliding_window=8",
                         "model.sliding_window_layers=7-9,2, 11",
                         "model.rope_scaling=longrope,original_max_position_embeddings=16,short_factor" + factors +
                             ",long_factor" + factors});
  EXPECT_THAT(c.model.sliding_window_layers, ElementsAre(2, 7, 8, 9, 11));
  const Config again = load_config(write_deck(c), "deck.ini");
  EXPECT_EQ(again.model.sliding_window_layers, c.model.sliding_window_layers);
  EXPECT_EQ(again.model.rope_scaling, c.model.rope_scaling);
  EXPECT_EQ(values_of(write_deck(again)), values_of(write_deck(c)));
  EXPECT_THAT(errors_of({"model.family=llama", "model.rope_scaling=linear"}), HasSubstr("needs a factor"));
  EXPECT_THAT(errors_of({"model.family=llama", "model.rope_theta=1",
                         "model.rope_scaling=yarn,factor=2,original_max_position_embeddings=8"}),
              HasSubstr("rope_theta above 1"));
  // Only dynamic scaling supports sequences longer than the model's.
  EXPECT_THAT(errors_of({"model.family=llama", "model.max_seq_len=16"}), HasSubstr("positions are fewer than"));
  EXPECT_EQ(errors_of({"model.family=llama", "model.max_seq_len=16", "model.rope_scaling=dynamic,factor=2"}),
            "no error");
  EXPECT_THAT(errors_of({"model.sliding_window=4", "model.sliding_window_layers=0-400"}), HasSubstr("layer 400 of 2"));
  EXPECT_THAT(errors_of({"model.sandwich_norm=true", "model.pre_norm=false"}), HasSubstr("pre_norm = true"));
}

TEST(Config, BatchIsGivenOneWayOrTheOther) {
  EXPECT_EQ(load({"batch.micro=4", "batch.global=12"}).batch.gradient_accumulation_steps, 3);
  EXPECT_EQ(load({"batch.micro=4", "batch.gradient_accumulation_steps=3"}).batch.global, 12);
  EXPECT_EQ(load({"batch.micro=4"}).batch.global, 4);
  EXPECT_EQ(load({"batch.global=6", "batch.gradient_accumulation_steps=3"}).batch.global, 3) << "the last one";
  const std::string deck = std::string(smallest) + "global = 6\n";
  EXPECT_THAT(errors_of({}, deck + "gradient_accumulation_steps = 3\n"),
              HasSubstr("cannot be combined with batch.global"));
  EXPECT_EQ(load({"batch.gradient_accumulation_steps=3"}, deck).batch.global, 3);
  EXPECT_EQ(load({"run.epochs=1.5"}).run.max_steps, 0);
  EXPECT_EQ(load({"run.epochs=1.5"}).run.epochs, 1.5);
}

TEST(Config, WantsWhatIsRequired) {
  EXPECT_EQ(
      errors_of({}, ""),
      "inputs/tiny.ini: data.train: is required: Files or globs: text; rows of JSON (.jsonl, .ndjson, or detected by "
      "content) with a text, or with input_ids and optional labels and attention_mask; both also as .gz and .zst; "
      "tables with such columns (.parquet, .arrow, .feather, .csv, .tsv); .h5 token files; or builtin:stories, the "
      "example corpus. Entries with weights (web.h5:0.7, code/*.h5:0.3) are "
      "sources that are sampled in this ratio.\n"
      "inputs/tiny.ini: batch.sequence_length: is required: Maximum length of a sample. Not required with run.task = "
      "evaluate, which takes the limit of model.path, at most 4096, and generate, which takes what the longest prompt "
      "and generate.max_new_tokens need within that limit.\n"
      "inputs/tiny.ini: run.max_steps: is required unless run.epochs is given\n"
      "inputs/tiny.ini: model.d_model: is required, unless model.path is given\n"
      "inputs/tiny.ini: model.n_layers: is required, unless model.path is given\n"
      "inputs/tiny.ini: model.n_heads: is required, unless model.path is given");
}

TEST(Config, FindsContradictions) {
  const auto expect = [](const std::vector<std::string>& arguments, std::string_view place, std::string_view what) {
    const std::string errors = errors_of(arguments);
    EXPECT_THAT(errors, HasSubstr(std::string(place) + ": "));
    EXPECT_THAT(errors, HasSubstr(std::string(what)));
    EXPECT_EQ(errors.find('\n'), std::string::npos) << "one error only: " << errors;
  };
  expect({"model.n_heads=5"}, "command line: model.n_heads", "5 heads do not divide d_model = 64");
  expect({"model.d_model=66"}, "inputs/tiny.ini:6: model.n_heads", "4 heads do not divide d_model = 66");
  expect({"model.n_kv_heads=3"}, "command line: model.n_kv_heads", "3 does not divide n_heads = 4");
  expect({"model.positions=rope", "model.head_dim=7"}, "command line: model.head_dim", "cannot be paired");
  expect({"model.positions=rope", "model.d_model=12"}, "inputs/tiny.ini:6: model.n_heads", "cannot be paired");
  expect({"model.max_seq_len=31"}, "command line: model.max_seq_len", "31 positions are fewer than");
  expect({"model.positions=rope", "model.max_seq_len=31"}, "command line: model.max_seq_len", "31 positions");
  expect({"model.d_model=4096", "model.n_heads=2"}, "command line: model.n_heads", "wider than 1024");
  expect({"run.name=cache"}, "command line: run.name", "the folder of token files");
  expect({"batch.global=7", "batch.micro=2"}, "command line: batch.global", "7 is not a multiple of micro = 2");
  expect({"batch.micro=1M", "batch.sequence_length=10K"}, "command line: batch.micro", "2^31");
  expect({"batch.global=4", "parallel.reduction_groups=5"}, "command line: parallel.reduction_groups",
         "5 is more than the 4 micro-batches");
  expect({"batch.global=4", "parallel.reduction_groups=2", "parallel.reduction_blocks=3"},
         "command line: parallel.reduction_blocks", "3 is more than the 2 reduction groups");
  expect({"batch.global=4", "parallel.reduction=tree", "parallel.reduction_blocks=2"},
         "command line: parallel.reduction_blocks", "a tree has no blocks");
  expect({"schedule.name=polynomial", "schedule.learning_rate=1e-8"}, "inputs/tiny.ini: schedule.lr_end", "not below");
  expect({"schedule.name=cosine_with_min_lr", "schedule.min_learning_rate=1"},
         "command line: schedule.min_learning_rate", "above learning_rate");
  expect({"evaluation.early_stopping_patience=2", "evaluation.every_steps=0"},
         "command line: evaluation.early_stopping_patience", "every_steps above 0");
  expect({"evaluation.early_stopping_patience=2", "data.validation_fraction=0"},
         "command line: evaluation.early_stopping_patience", "needs validation data");
  expect({"precision.compute=fp16", "precision.min_loss_scale=1e5"}, "command line: precision.min_loss_scale",
         "100000 is above initial_loss_scale = 65536");
  expect({"precision.compute=fp16", "precision.loss_scale=0"}, "command line: precision.loss_scale", "range");
  expect({"precision.compute=fp8"}, "command line: precision.compute", "fp16");
  expect({"run.name=a/b"}, "command line: run.name", "cannot name a folder");
  expect({"run.name=.."}, "command line: run.name", "cannot name a folder");
  // controls: the nearest valid value
  EXPECT_EQ(errors_of({"model.positions=rope", "model.head_dim=8"}), "no error");
  EXPECT_EQ(errors_of({"model.positions=rope", "model.max_seq_len=32"}), "no error");
  EXPECT_EQ(
      errors_of({"batch.global=8", "batch.micro=2", "parallel.reduction_groups=4", "parallel.reduction_blocks=4"}),
      "no error");
  EXPECT_EQ(errors_of({"model.head_dim=7", "model.n_heads=5"}), "no error");
}

TEST(Config, NumbersOfKernelsAreNumbersInFp32) {
  const auto expect = [](const std::string& argument, std::string_view what) {
    const std::string errors = errors_of({argument});
    EXPECT_THAT(errors, HasSubstr("command line: " + argument.substr(0, argument.find('='))));
    EXPECT_THAT(errors, HasSubstr(std::string(what))) << argument;
  };
  for (const char* key :
       {"schedule.learning_rate", "schedule.min_learning_rate", "schedule.lr_end", "optimizer.epsilon",
        "optimizer.weight_decay", "optimizer.max_grad_norm", "model.norm_epsilon", "model.rope_theta",
        "model.embedding_scale", "model.query_pre_attn_scalar", "model.attention_softcap", "model.final_softcap",
        "model.initializer_std"}) {
    expect(std::string(key) + "=1e300", "'1e300' is too large for fp32, in which it is used: the maximum is 3.4e38");
    expect(std::string(key) + "=1e-60", "'1e-60' is 0 in fp32, in which it is used");
  }
  for (const char* key : {"optimizer.beta1", "optimizer.beta2", "model.dropout", "model.attention_dropout"}) {
    expect(std::string(key) + "=1e-60", "'1e-60' is 0 in fp32");
    expect(std::string(key) + "=0.99999999999", "is 1 in fp32, in which it is used: must be 0 .. 1 (1 excluded)");
  }
  EXPECT_THAT(errors_of({}, std::string(smallest) + "[schedule]\nlearning_rate = 1e300\n"),
              HasSubstr("inputs/tiny.ini:12: schedule.learning_rate: '1e300' is too large"));
  EXPECT_EQ(errors_of({"schedule.learning_rate=3.4e38", "optimizer.epsilon=2e-45", "optimizer.weight_decay=0",
                       "model.dropout=0.9999999"}),
            "no error");
}

TEST(Config, ARunShorterThanItsWarmupIsNotedAndItsResolvedDeckIsADeckAgain) {
  const std::string deck = std::string(smallest) + "[schedule]\nname = linear\nwarmup_steps = 5\n";
  const auto note = HasSubstr("schedule.warmup_steps: 5 steps do not fit into run.max_steps = 2");
  const Config trial = load({"run.max_steps=2"}, deck);
  EXPECT_THAT(trial.notes, ElementsAre(note));
  const Config again = load({}, write_deck(trial));
  EXPECT_THAT(again.notes, ElementsAre(note));
  EXPECT_EQ(again.schedule.warmup_steps, 5);
  EXPECT_THAT(changes_since(load({}, deck), write_deck(trial)).applied, ElementsAre("run.max_steps: 2 there, 10 here"));
  EXPECT_THAT(load({"run.max_steps=5"}, deck).notes, IsEmpty()) << "control";
  EXPECT_THAT(load({"schedule.name=warmup_stable_decay", "schedule.decay_steps=6"}, deck).notes,
              ElementsAre(HasSubstr("5 and 6 of decay steps do not fit into run.max_steps = 10")));
}

TEST(Config, NotesKeysWithoutEffect) {
  const Config c = load({"schedule.warmup_steps=5", "model.rope_theta=7", "data.overflow=error"});
  EXPECT_THAT(c.notes, ElementsAre("command line: model.rope_theta: no effect with positions = learned",
                                   "command line: data.overflow: no effect with packing = wrap",
                                   "command line: schedule.warmup_steps: no effect with name = constant"));
  EXPECT_EQ(write_deck(c).find("\nwarmup_steps ="), std::string::npos);
}

TEST(Config, OptimizersHaveTheDefaultsOfTheirLibraries) {
  const OptimizerConfig lion = load({"optimizer.name=lion"}).optimizer;
  EXPECT_EQ(lion.beta2, 0.99);
  EXPECT_EQ(lion.weight_decay, 0);
  EXPECT_EQ(load({"optimizer.name=lion", "optimizer.beta2=0.999"}).optimizer.beta2, 0.999);
  const Config sgd = load({"optimizer.name=sgd", "optimizer.epsilon=1e-6", "optimizer.nesterov=true"});
  EXPECT_EQ(sgd.optimizer.weight_decay, 0);
  EXPECT_THAT(sgd.notes, ElementsAre("command line: optimizer.epsilon: no effect with name = sgd",
                                     "command line: optimizer.nesterov: no effect with momentum = 0"));
  const ParallelConfig paged = load({"optimizer.name=paged_adamw_8bit"}).parallel;
  EXPECT_EQ(paged.offload_optimizer, Offload::cpu);
  const Config resident = load({"optimizer.name=paged_adamw", "parallel.offload_optimizer=none"});
  EXPECT_EQ(resident.parallel.offload_optimizer, Offload::none);
  EXPECT_THAT(load({"optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.nesterov=true"}).notes, IsEmpty());
}

TEST(Config, LossScaleIsOfFp16) {
  const Config c = load({"precision.compute=fp16"});
  EXPECT_EQ(c.precision.loss_scale, PrecisionConfig::dynamic);
  EXPECT_THAT(c.notes, IsEmpty());
  EXPECT_THAT(write_deck(c), HasSubstr("\nloss_scale = dynamic "));
  EXPECT_THAT(write_deck(c), HasSubstr("\ninitial_loss_scale = 65536 "));
  EXPECT_EQ(compute_dtype(c.precision.compute), DType::f16);
  EXPECT_EQ(compute_dtype(load({"precision.compute=tf32"}).precision.compute), DType::f32);
  EXPECT_THAT(load({"precision.loss_scale=8"}).notes,
              ElementsAre("command line: precision.loss_scale: no effect without compute = fp16"));
  const Config fixed = load({"precision.compute=fp16", "precision.loss_scale=8", "precision.min_loss_scale=2"});
  EXPECT_EQ(fixed.precision.loss_scale, 8);
  EXPECT_THAT(fixed.notes, ElementsAre("command line: precision.min_loss_scale: no effect with a fixed loss_scale"));
  // A run may resume with other rules, not with another type.
  const auto changes = [&](const std::string& argument) {
    return changes_since(load({"precision.compute=fp16", argument}), write_deck(c));
  };
  EXPECT_THAT(changes("precision.loss_scale_window=7").applied, ElementsAre(HasSubstr("2000 there, 7 here")));
  EXPECT_THAT(changes("precision.loss_scale_window=7").breaking, IsEmpty());
  EXPECT_THAT(changes("precision.initial_loss_scale=8").breaking, ElementsAre(HasSubstr("65536 there, 8 here")));
  EXPECT_THAT(changes_since(load({"precision.compute=bf16"}), write_deck(c)).breaking,
              ElementsAre("precision.compute: fp16 there, bf16 here"));
}

TEST(Config, ScheduleDefaultsFollowItsName) {
  EXPECT_EQ(load({"schedule.name=cosine"}).schedule.num_cycles, 0.5);
  EXPECT_EQ(load({"schedule.name=cosine_with_restarts"}).schedule.num_cycles, 1);
  EXPECT_EQ(load({"schedule.name=cosine_with_min_lr", "schedule.learning_rate=2"}).schedule.min_learning_rate, 0.2);
  EXPECT_EQ(load({"schedule.name=warmup_stable_decay"}).schedule.min_learning_rate, 0);
  EXPECT_EQ(load({"schedule.name=warmup_stable_decay", "schedule.decay_type=1-sqrt"}).schedule.decay_type,
            ScheduleConfig::DecayType::one_minus_sqrt);
}

TEST(Config, SeparatorsAreWordsOrText) {
  const auto separator = [](const std::string& text) {
    return load({"data.document_separator=" + text}).data.document_separator;
  };
  EXPECT_EQ(load({}).data.document_separator, "");
  EXPECT_EQ(separator("none"), "");
  EXPECT_EQ(separator("blank_line"), "\n\n");
  EXPECT_EQ(separator("<|endoftext|>"), "<|endoftext|>");
  EXPECT_EQ(separator("\\n---\\n"), "\n---\n");
}

const std::vector<std::vector<std::string>> variants = {
    {},
    {"model.family=llama", "run.epochs=2.5", "batch.gradient_accumulation_steps=3"},
    {"schedule.name=warmup_stable_decay", "schedule.decay_steps=3", "schedule.warmup_ratio=0.1", "run.seed=7"},
    {"schedule.name=polynomial", "data.packing=none", "data.document_separator=\\n;#\\n",
     "data.validation=a.txt,b.txt"},
    {"log.sample_prompts=Once\\, a, b ; c # d", "run.name=a b", "memory.limit=3GiB", "log.sinks=jsonl"},
    {"precision.compute=fp16", "precision.loss_scale_hysteresis=2"},
    {"precision.compute=fp16", "precision.loss_scale=1024"},
    {"optimizer.name=lion"},
    {"optimizer.name=sgd", "optimizer.momentum=0.9"},
    {"log.sinks=", "model.vocab_size=300", "precision.compute=fp32", "schedule.name=cosine_with_restarts"},
};

TEST(ResolvedDeck, ResolvesToItself) {
  for (const std::vector<std::string>& arguments : variants) {
    const std::string deck = write_deck(load(arguments));
    const Config again = load_config(deck, "elsewhere/deck.ini", {});
    EXPECT_EQ(values_of(write_deck(again)), values_of(deck));
    EXPECT_THAT(again.notes, IsEmpty());
  }
  EXPECT_NE(values_of(write_deck(load({}))), values_of(write_deck(load({"run.seed=43"})))) << "control";
}

TEST(ChangedDeck, BreaksTheRunOrAppliesFromThereOnOrMattersNotAsTheKeySays) {
  const std::string begun = write_deck(load({}));
  const auto since = [&](const std::vector<std::string>& arguments) { return changes_since(load(arguments), begun); };
  const Changes without_effect =
      since({"run.name=b", "run.output=elsewhere", "run.overwrite=true", "run.time_limit=1h", "data.cache=c",
             "data.unpacked_limit=1", "parallel.zero=3", "parallel.offload_optimizer=nvme",
             "parallel.offload_path=/scratch", "memory.recompute=block", "log.every_steps=1",
             "evaluation.every_steps=3", "checkpoint.every_steps=7", "watchdog.enabled=false"});
  EXPECT_THAT(without_effect.breaking, IsEmpty());
  EXPECT_THAT(without_effect.applied, IsEmpty());
  const Changes some =
      since({"run.seed=43", "run.max_steps=20", "model.dropout=0.5", "model.attention_dropout=0.25", "model.n_layers=3",
             "optimizer.max_grad_norm=7", "divergence.skip_steps=7", "parallel.reduction_blocks=2", "batch.global=4"});
  EXPECT_THAT(some.breaking,
              ElementsAre("run.seed: 42 there, 43 here", HasSubstr("model.n_layers: 2 there, 3 here"),
                          HasSubstr("batch.global"), HasSubstr("parallel.reduction_blocks: 1 there, 2 here")));
  EXPECT_THAT(some.applied,
              ElementsAre("run.max_steps: 10 there, 20 here", HasSubstr("model.dropout: 0 there, 0.5 here"),
                          HasSubstr("model.attention_dropout"), HasSubstr("optimizer.max_grad_norm"),
                          HasSubstr("divergence.skip_steps")));

  // Keys that break the run in sections whose other keys do not.
  const std::string half = write_deck(load({"precision.compute=fp16", "batch.global=4"}));
  EXPECT_THAT(changes_since(load({"precision.compute=fp16", "batch.global=4", "precision.initial_loss_scale=1024",
                                  "parallel.reduction_groups=2"}),
                            half)
                  .breaking,
              UnorderedElementsAre(HasSubstr("parallel.reduction_groups"), HasSubstr("precision.initial_loss_scale")));
  EXPECT_THAT(changes_since(load({"precision.compute=fp32"}), write_deck(load({"precision.compute=bf16"}))).breaking,
              ElementsAre(HasSubstr("precision.compute")));
}

TEST(DeckFile, IsReadWhole) {
  const std::string path = ::testing::TempDir() + "llmtrain_config_test_" + std::to_string(getpid()) + ".ini";
  std::ofstream(path, std::ios::binary) << smallest;
  EXPECT_EQ(read_deck_file(path), smallest);
  std::ofstream(path, std::ios::binary) << std::string(max_deck_bytes + 1, '#');
  try {
    read_deck_file(path);
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
  }
  std::remove(path.c_str());
  for (const std::string& missing : {path, ::testing::TempDir()}) {
    try {
      read_deck_file(missing);
      ADD_FAILURE();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::missing_input);
      EXPECT_THAT(error.what(), HasSubstr(missing));
    }
  }
}

// docs/deck.md is generated: LLMTRAIN_UPDATE_DOCS=1 test_train --gtest_filter=Manual.* writes it anew.
TEST(Manual, IsCurrent) {
  const std::string path = "docs/deck.md";
  if (std::getenv("LLMTRAIN_UPDATE_DOCS") != nullptr) std::ofstream(path) << deck_manual();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == deck_manual()) << path << " is out of date: LLMTRAIN_UPDATE_DOCS=1 writes it anew";
}

TEST(Manual, EveryKeyIsExplained) {
  Config config;
  DeckKeys keys;
  config.visit(keys);
  EXPECT_GT(keys.keys().size(), 80u);
  for (const DeckKeys::Key& key : keys.keys()) {
    EXPECT_GT(key.info.doc.size(), 7u) << key.full_name();
    EXPECT_TRUE(key.info.doc.ends_with('.')) << key.full_name();
    EXPECT_EQ(keys.find(key.full_name()), &key) << "listed twice: " << key.full_name();
    EXPECT_THAT(help_text(key.full_name()), HasSubstr(std::string(key.info.doc)));
  }
}

}  // namespace
}  // namespace llmtrain
