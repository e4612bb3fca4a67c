// The plan equals the memory use of a run: --estimate is exact.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

std::vector<std::string> deck(const std::string& name, const TemporaryFolder& folder) {
  return {(source_folder() / "inputs" / name).string(),
          "run.output=" + folder.text(),
          "run.name=a",
          "run.max_steps=2",
          "data.cache=" + folder.text(),
          "evaluation.at_end=false",
          "log.every_steps=1",
          "log.samples_every_steps=0"};
}

nlohmann::json report_of(const Outcome& estimate) {
  EXPECT_EQ(estimate.exit_code, 0) << estimate.output;
  const size_t begin = estimate.output.find('{');
  return begin == std::string::npos ? nlohmann::json() : nlohmann::json::parse(estimate.output.substr(begin));
}

nlohmann::json estimated(std::vector<std::string> arguments, const std::string& environment = "") {
  arguments.insert(arguments.end(), {"--estimate", "--json"});
  return report_of(llmtrain({1, 1, arguments, {}, environment}));
}

nlohmann::json last_metrics(const TemporaryFolder& folder) {
  std::istringstream lines(read_file(folder / "a/metrics.jsonl"));
  std::string line, last;
  while (std::getline(lines, line)) last = line;
  return nlohmann::json::parse(last);
}

struct Layout {
  int ranks, stage;
  const char* recompute;
};

class Memory : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (std::string(LLMTRAIN_SANITIZED) == "yes") GTEST_SKIP() << "the sanitizers' own memory is not in the estimate";
  }
};

// Pages that ranks share count by their share.
TEST_P(Memory, OfARunIsTheEstimate) {
  const auto [ranks, stage, recompute] = GetParam();
  const TemporaryFolder folder;
  std::vector<std::string> arguments = deck("medium.ini", folder);
  arguments.insert(arguments.end(),
                   {"batch.micro=1", "batch.global=" + std::to_string(ranks), "parallel.zero=" + std::to_string(stage),
                    "memory.recompute=" + std::string(recompute), "checkpoint.at_end=false"});
  const Outcome run = llmtrain({ranks, 1, arguments});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto metrics = last_metrics(folder);

  arguments.insert(arguments.end(), {"--ranks", std::to_string(ranks)});
  const auto j = estimated(arguments);
  ASSERT_GT(j["parameters"].get<double>(), 100e6);
  const double total = j["bytes_per_rank"]["total"], plan = total - j["bytes_per_rank"]["libraries"].get<double>();
  EXPECT_NEAR(metrics["memory"].get<double>() / total, 1.0, 0.05) << metrics << j;
  EXPECT_NEAR((metrics["memory"].get<double>() - metrics["memory_libraries"].get<double>()) / plan, 1.0, 0.02)
      << metrics << j;
}

INSTANTIATE_TEST_SUITE_P(RanksAndStages, Memory,
                         ::testing::Values(Layout{1, 1, "none"}, Layout{2, 0, "none"}, Layout{2, 2, "none"},
                                           Layout{2, 3, "none"}, Layout{1, 1, "block"}),
                         [](const auto& test) {
                           return "ranks" + std::to_string(test.param.ranks) + "zero" +
                                  std::to_string(test.param.stage) + test.param.recompute;
                         });

struct Case {
  const char* name;
  std::vector<std::string> settings;
};

/// Runs of 80 to 250 MiB, of which program and libraries are a large fraction.
class PeakMemory : public ::testing::TestWithParam<Case> {};

/// Peak resident bytes of a program.
double peak_of(const std::function<Outcome()>& run) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return 0;
  const pid_t child = fork();
  if (child == 0) {  // a separate process, which has had no other children
    close(ends[0]);
    rusage usage{};
    const int code = [&]() noexcept { return run().exit_code; }();
    getrusage(RUSAGE_CHILDREN, &usage);
    const double bytes = code == 0 ? 1024.0 * static_cast<double>(usage.ru_maxrss) : 0;
    _exit(write(ends[1], &bytes, sizeof bytes) == sizeof bytes ? 0 : 1);
  }
  close(ends[1]);  // otherwise the end of a child that wrote nothing is never seen
  double bytes = 0;
  waitpid(child, nullptr, 0);
  EXPECT_EQ(read(ends[0], &bytes, sizeof bytes), static_cast<ssize_t>(sizeof bytes));
  close(ends[0]);
  return bytes;
}

double peak_of(const std::vector<std::string>& arguments) {
  return peak_of([&] { return llmtrain({1, 2, arguments}); });
}

TEST_P(PeakMemory, OfAProcessIsTheEstimate) {
  if (std::string(LLMTRAIN_SANITIZED) == "yes") GTEST_SKIP() << "the sanitizers' own memory is not in the estimate";
  const TemporaryFolder folder;
  std::vector<std::string> arguments = deck("small.ini", folder);
  arguments.insert(arguments.end(), {"batch.global=4", "checkpoint.every_steps=0", "checkpoint.every_minutes=0"});
  arguments.insert(arguments.end(), GetParam().settings.begin(), GetParam().settings.end());
  const std::string threads = "OMP_NUM_THREADS=2";
  estimated(arguments, threads);  // the first run caches the tokens; tokenizing leaves memory with a process
  const auto j = estimated(arguments, threads);
  EXPECT_NEAR(peak_of(arguments) / j["bytes_per_rank"]["total"].get<double>(), 1.0, 0.05) << j;
}

const std::string no_checkpoint = "checkpoint.at_end=false";

INSTANTIATE_TEST_SUITE_P(Decks, PeakMemory,
                         ::testing::Values(Case{"bf16", {"precision.compute=bf16", no_checkpoint}},
                                           Case{"fp32", {"precision.compute=fp32", no_checkpoint}},
                                           Case{"block", {"memory.recompute=block", no_checkpoint}},
                                           Case{"accumulation", {"batch.micro=1", "parallel.zero=2", no_checkpoint}},
                                           Case{"documents", {"data.packing=best_fit", no_checkpoint}},
                                           Case{"llama", {"model.family=llama", no_checkpoint}},
                                           Case{"freeze", {"run.finetuning=freeze", no_checkpoint}},
                                           Case{"profile", {"log.profile=1", no_checkpoint}},
                                           Case{"checkpoint", {"checkpoint.at_end=true"}}),
                         [](const auto& test) { return test.param.name; });

/// Checks llmtool with prompts and rows of 50 tokens.
void generation_and_scores_are_estimated(const std::string& model) {
  std::string ids = "1";
  for (int i = 1; i < 50; ++i) ids += ",1";
  const std::string row = "{\"input_ids\":[" + ids + "]}\n";
  std::vector<std::string> sixteen = {"generate", "--max-new-tokens", "8"};
  for (int i = 0; i < 16; ++i) sixteen.insert(sixteen.end(), {"--prompt", "One day"});
  const std::vector<std::string> one = {"generate", "--max-new-tokens", "8", "--prompt", "One day"};
  const auto estimate_of = [&](std::vector<std::string> arguments, const std::string& compute) {
    arguments.insert(arguments.end(), {"--model", model, "--compute", compute});
    const std::string input = arguments.front() == "logprobs" ? row : "";
    const double peak = peak_of([&] { return llmtool(arguments, input); });
    arguments.insert(arguments.end(), {"--estimate", "--json"});
    const auto j = report_of(llmtool(arguments, input));
    EXPECT_NEAR(peak / j["bytes_per_rank"]["total"].get<double>(), 1.0, 0.05) << j;
    EXPECT_NEAR(j["bytes_per_rank"]["weights"].get<double>() / j["parameters"].get<double>(), compute == "bf16" ? 2 : 4,
                0.01)
        << j;
    return j["bytes_per_rank"].value("kv_cache", int64_t{0});
  };
  const int64_t cached = estimate_of(one, "bf16");
  EXPECT_GT(cached, 0);
  EXPECT_EQ(estimate_of(sixteen, "bf16"), 16 * cached);
  EXPECT_EQ(estimate_of(one, "fp32"), 2 * cached);
  EXPECT_EQ(estimate_of({"logprobs"}, "bf16"), 0);
}

TEST(MemoryPlan, WeightsThatAreNotTrainedHaveTheirStorageOnly) {
  if (std::string(LLMTRAIN_SANITIZED) == "yes") GTEST_SKIP() << "the sanitizers' own memory is not in the estimate";
  const TemporaryFolder folder;
  std::vector<std::string> training = deck("small.ini", folder);
  training.insert(training.end(),
                  {"batch.global=1", "batch.micro=1", "checkpoint.at_end=false", "checkpoint.export=last"});
  // Matrices that are stored transposed, and as large as a thread reads at once; small activations beside them.
  const std::vector<std::string> wide = {"model.d_model=1024", "model.d_ff=4096", "model.n_layers=2",
                                         "batch.sequence_length=64"};
  training.insert(training.end(), wide.begin(), wide.end());
  ASSERT_EQ(llmtrain({1, 2, training}).exit_code, 0);
  const auto settings_of = [](const std::string& name) -> std::vector<std::string> {
    if (name == "nf4") {
      return {"run.task=evaluate", "evaluation.batches=1", "precision.compute=bf16", "quantization.bits=4"};
    }
    if (name != "lora") return {"run.task=evaluate", "evaluation.batches=1", "precision.compute=" + name};
    return {"run.finetuning=lora", "lora.dora=true",          "lora.dropout=0.1",        "precision.compute=bf16",
            "run.max_steps=2",     "checkpoint.at_end=false", "evaluation.at_end=false", "log.samples_every_steps=0"};
  };
  // In lora the weights are hashed while they are read, without room for them in fp32. A matrix is 8 MiB in 16 bits:
  // neither the model nor a matrix is ever in memory that is not yet quantised.
  for (const auto& [name, bytes] : {std::pair("bf16", 2.0), {"fp32", 4.0}, {"lora", 2.2}, {"nf4", 0.53}}) {
    std::vector<std::string> arguments = {(source_folder() / "inputs/small.ini").string(),
                                          "run.output=" + folder.text(),
                                          "run.name=" + std::string(name),
                                          "model.path=" + (folder / "a/export").string(),
                                          "data.cache=" + folder.text(),
                                          "batch.global=1",
                                          "batch.micro=1"};
    for (const auto& more : {settings_of(name), wide}) arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string threads = "OMP_NUM_THREADS=2";
    estimated(arguments, threads);
    const auto j = estimated(arguments, threads);
    const double weights =
        j["bytes_per_rank"]["weights"].get<double>() + j["bytes_per_rank"]["optimizer"].get<double>();
    EXPECT_NEAR(weights / j["parameters"].get<double>(), bytes, bytes == 2.2 ? 0.2 : 0.01) << j;
    EXPECT_NEAR(peak_of(arguments) / j["bytes_per_rank"]["total"].get<double>(), 1.0, 0.05) << j;
  }
  generation_and_scores_are_estimated((folder / "a/export").string());
}

// Threads are divided among the ranks of a node, and need memory of their own.
TEST(MemoryPlan, OfOtherRanksIsWhatTheyPlan) {
  const TemporaryFolder folder;
  std::vector<std::string> arguments = deck("quickstart.ini", folder);
  arguments.insert(arguments.end(), {"checkpoint.at_end=false", "parallel.zero=0"});  // only the threads differ
  const std::string by_cores = "env -u OMP_NUM_THREADS";
  const Outcome run = llmtrain({2, 1, arguments, {}, by_cores});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto plan_of = [&](const char* ranks) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--ranks", ranks});
    const auto bytes = estimated(all, by_cores)["bytes_per_rank"];
    return bytes["total"].get<double>() - bytes["libraries"].get<double>();
  };
  const double planned = last_metrics(folder)["memory_planned"];
  EXPECT_NEAR(plan_of("2") / planned, 1, 1e-3);
  if (std::thread::hardware_concurrency() > 1) {
    EXPECT_GT(plan_of("1"), planned) << "control";
  }
}

TEST(MemoryPlan, ANodeThatIsNotFullCountsTheRanksThatItHas) {
  const TemporaryFolder folder;
  const auto on_nodes_of = [&](const char* ranks) {
    std::vector<std::string> arguments = deck("quickstart.ini", folder);
    arguments.insert(arguments.end(), {"--ranks", "6", "--ranks-per-node", ranks});
    return estimated(arguments);
  };
  on_nodes_of("4");  // the first run caches the tokens, as in PeakMemory
  const auto four = on_nodes_of("4"), two = on_nodes_of("2");
  EXPECT_EQ(four["bytes_per_node"].get<int64_t>(), 4 * four["bytes_per_rank"]["total"].get<int64_t>());
  EXPECT_EQ(four["ranks_of_last_node"], 2);
  EXPECT_NEAR(four["bytes_of_last_node"].get<double>() / two["bytes_per_node"].get<double>(), 1, 0.02) << four << two;
  EXPECT_FALSE(two.contains("bytes_of_last_node"));
}

TEST(MemoryPlan, BeyondWhatCanBeCountedIsAnError) {
  const TemporaryFolder folder;
  std::vector<std::string> arguments = deck("quickstart.ini", folder);
  arguments.insert(arguments.end(),
                   {"model.d_model=262144", "model.n_heads=1024", "model.n_layers=1", "model.vocab_size=1073741824",
                    "parallel.zero=0", "--estimate", "--ranks", "65536"});
  const Outcome estimate = llmtrain({1, 1, arguments});
  EXPECT_EQ(estimate.exit_code, 78) << estimate.output;
  EXPECT_NE(estimate.output.find("on a node need more than 2^63 bytes"), std::string::npos) << estimate.output;
}

// Shards of unequal size: the last of three ranks has more than the first, which prints.
TEST(MemoryPlan, TheOpeningLineIsOfTheRankWithTheMost) {
  const TemporaryFolder folder;
  for (const auto& [ranks, text] : {std::pair(1, " per rank, "), std::pair(3, " per rank at most, ")}) {
    std::vector<std::string> arguments = deck("quickstart.ini", folder);
    arguments.insert(arguments.end(), {"checkpoint.at_end=false", "run.overwrite=true"});
    const Outcome run = llmtrain({ranks, 1, arguments});
    EXPECT_EQ(run.exit_code, 0) << run.output;
    EXPECT_NE(run.output.find(text), std::string::npos) << run.output;
  }
}

TEST(MemoryPlan, NothingIsCopiedWhereNothingIsSaved) {
  const TemporaryFolder folder;
  const auto workspace = [&](const std::string& at_end, const std::string& buffer) {
    std::vector<std::string> arguments = deck("quickstart.ini", folder);
    arguments.insert(arguments.end(), {"checkpoint.every_steps=0", "checkpoint.every_minutes=0",
                                       "checkpoint.at_end=" + at_end, "checkpoint.buffer=" + buffer});
    return estimated(arguments)["bytes_per_rank"]["workspace"].get<int64_t>();
  };
  EXPECT_EQ(workspace("false", "1048576"), workspace("false", "2097152"));
  EXPECT_EQ(workspace("true", "1048576"), workspace("false", "1048576") + (1 << 20));
}

}  // namespace
}  // namespace llmtrain::test
