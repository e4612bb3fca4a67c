// Checkpoints as models: evaluation, export in little memory, and resuming if the folder that a run started from is
// gone.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "word" + std::to_string(i * i % 13) + (i % 9 == 8 ? ".\n\n" : " ");
  return text;
}

nlohmann::json report_of(const fs::path& run) {
  nlohmann::json report = nlohmann::json::parse(read_file(run / "evaluation.json"));
  report.erase("model");
  report.erase("checkpoint");
  return report;
}

class StoredModel : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder / name).string(); }
  void must(const Outcome& outcome, int code = 0) {
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    output = outcome.output;
  }
  TemporaryFolder folder;
  std::string output;
};

TEST_F(StoredModel, IsEvaluatedAsItsExportIs) {
  write_file(folder / "text.txt", words(400));
  write_file(folder / "held.txt", words(77));
  // 64 rows, some of which belong to no token: the export omits them.
  write_file(folder / "train.ini", "[run]\nmax_steps = 4\noutput = " + folder.text() +
                                       "\n[model]\nd_model = 24\nn_layers = 2\nn_heads = 3\nvocab_size = 64\n[data]\n"
                                       "train = " +
                                       path("text.txt") +
                                       "\ntokenizer = char\n[batch]\nsequence_length = 32\nmicro = 2\nglobal = 4\n"
                                       "[schedule]\nlearning_rate = 1e-2\n[precision]\ncompute = fp32\n"
                                       "[checkpoint]\nevery_steps = 2\nkeep = 10\nexport = last\n");
  must(llmtrain({2, 1, {path("train.ini"), "run.name=train"}}));
  write_file(folder / "evaluate.ini", "[run]\ntask = evaluate\noutput = " + folder.text() +
                                          "\n[data]\nvalidation = " + path("held.txt") +
                                          "\n[batch]\nsequence_length = 32\nmicro = 2\n[precision]\ncompute = fp32\n");
  const auto evaluate = [&](const std::string& model, const std::string& name, int ranks, int stage) {
    must(llmtrain({ranks,
                   1,
                   {path("evaluate.ini"), "run.name=" + name, "model.path=" + path(model),
                    "parallel.zero=" + std::to_string(stage)}}));
    return report_of(folder / name);
  };
  const nlohmann::json exported = evaluate("train/export", "exported", 1, 0);
  EXPECT_TRUE(exported.contains("bits_per_byte")) << exported;
  const std::string newest = "train/checkpoints/step-00000004";
  EXPECT_EQ(evaluate("train", "run", 1, 1), exported);
  EXPECT_THAT(output, HasSubstr(newest));
  EXPECT_EQ(evaluate(newest, "whole", 2, 0), exported);
  EXPECT_EQ(evaluate(newest, "sharded", 3, 3), exported);
  EXPECT_NE(evaluate("train/checkpoints/step-00000002", "older", 1, 1)["loss"], exported["loss"]) << "control";

  // The same weights from the checkpoint as at the end of the run.
  must(llmtool({"export", path("train"), "--output", path("again")}));
  EXPECT_EQ(read_file(folder / "again/model.safetensors"), read_file(folder / "train/export/model.safetensors"));
  must(llmtool({"export", path("train/checkpoints/step-00000002"), "--output", path("older_export")}));
  EXPECT_NE(read_file(folder / "older_export/model.safetensors"), read_file(folder / "again/model.safetensors"));

  must(llmtrain({2, 1, {path("train.ini"), "run.name=more", "model.path=" + path("train")}}), 78);
  EXPECT_THAT(output, HasSubstr("checkpoint.resume"));
}

TEST_F(StoredModel, GoesOnWhereTheFolderThatItBeganWithIsGone) {
  const fs::path model = folder / "model";
  fs::copy(source_folder() / "tests/reference/hf/llama", model);
  write_file(model / "tokenizer.json",
             R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":2,"content":"</s>",)"
             R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],)"
             R"("normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,)"
             R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":3,"</s>":2},"merges":["a b"]}})");
  write_file(model / "tokenizer_config.json", R"({"eos_token": "</s>"})");
  std::string text;
  for (int i = 0; i < 500; ++i) text += i * i % 7 < 3 ? "a" : "b";
  write_file(folder / "text.txt", text);
  write_file(folder / "deck.ini", "[run]\nmax_steps = 4\noutput = " + folder.text() +
                                      "\n[model]\npath = " + model.string() + "\n[data]\ntrain = " + path("text.txt") +
                                      "\n[batch]\nsequence_length = 12\nmicro = 2\nglobal = 6\n[schedule]\n"
                                      "learning_rate = 3e-3\n[precision]\ncompute = fp32\n[log]\n"
                                      "parameter_hash_every_steps = 1\n[checkpoint]\nevery_steps = 2\nkeep = 10\n"
                                      "export = last\n");
  const auto run = [&](const std::string& name, int ranks, int code = 0) {
    must(llmtrain({ranks, 1, {path("deck.ini"), "run.name=" + name}}), code);
  };
  run("whole", 1);
  run("cut", 2);
  fs::remove_all(folder / "cut/checkpoints/step-00000004");
  fs::remove_all(folder / "cut/export");
  fs::remove(folder / "cut/finished.json");
  fs::rename(model, folder / "elsewhere");
  fs::remove_all(folder / "cache");  // the text is read again

  run("cut", 3);
  EXPECT_THAT(output, HasSubstr("resumed"));
  EXPECT_EQ(read_file(folder / "cut/ledger.jsonl"), read_file(folder / "whole/ledger.jsonl"));
  must(llmtool({"export", path("cut/checkpoints/step-00000004"), "--output", path("tool")}));
  for (const auto& [name, source] : {std::pair("cut/export", "whole/export"), {"tool", "whole/export"}}) {
    for (const auto& file : fs::directory_iterator(folder / source)) {
      const std::string leaf = file.path().filename();
      if (leaf == "tokenizer_config.json") {  // the checkpoint adds the class, which config.json decided before
        auto stored = nlohmann::json::parse(read_file(folder / name / leaf));
        EXPECT_EQ(stored.erase("tokenizer_class"), 1U);
        EXPECT_EQ(stored, nlohmann::json::parse(read_file(file.path()))) << name;
      } else {
        EXPECT_EQ(read_file(folder / name / leaf), read_file(file.path())) << name << ": " << leaf;
      }
    }
  }
  // Without any checkpoint, a run needs the folder; so does a new run.
  run("new", 2, 66);
  EXPECT_THAT(output, HasSubstr("model.path"));
  fs::remove_all(folder / "cut/checkpoints");
  fs::remove(folder / "cut/finished.json");
  run("cut", 1, 66);
  EXPECT_THAT(output, HasSubstr("model.path"));
}

/// Peak memory of llmtool, bytes.
int64_t peak_of(const std::vector<std::string>& arguments) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("OMP_NUM_THREADS", "2", 1);
    std::vector<std::string> all = {programs::llmtool};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    pointers.reserve(all.size() + 1);
    for (std::string& argument : all) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDOUT_FILENO);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  EXPECT_EQ(status, 0);
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST_F(StoredModel, IsExportedInLessMemoryThanItTakes) {
  if (std::string(LLMTRAIN_SANITIZED) == "yes") GTEST_SKIP() << "the sanitizers' own memory is beyond the limit";
  write_file(folder / "text.txt", words(400));
  write_file(folder / "deck.ini",
             "[run]\nname = a\nmax_steps = 1\noutput = " + folder.text() +
                 "\n[model]\nd_model = 320\nn_layers = 24\nn_heads = 5\n[data]\ntrain = " + path("text.txt") +
                 "\ntokenizer = char\n[batch]\nsequence_length = 8\nglobal = 1\n[schedule]\n"
                 "learning_rate = 1e-3\n[evaluation]\nat_end = false\n[checkpoint]\n"
                 "verify = false\n");
  must(llmtrain({2, 1, {path("deck.ini")}}));
  const int64_t libraries = peak_of({"tokenizer", "info", "--tokenizer", "bytes"});
  const int64_t exporting = peak_of({"export", path("a"), "--output", path("out")}) - libraries;
  const auto weights = static_cast<int64_t>(fs::file_size(folder / "out/model.safetensors"));
  EXPECT_GT(weights, int64_t{110} << 20);
  EXPECT_LT(exporting, int64_t{40} << 20) << "largest tensor 1.6 MB, pieces of 16 MiB";
  const int64_t running = peak_of({"generate", "--model", path("a"), "--prompt", "word", "--max-new-tokens", "1"});
  EXPECT_GT(running - libraries, weights) << "control: it holds the model";
}

}  // namespace
}  // namespace llmtrain::test
