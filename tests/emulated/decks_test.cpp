// Whole runs of the GPU program on emulated GPUs (tests/emulator), alone and compared with the host's program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "decks/run_folder.hpp"
#include "decks/span_log.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const DocumentsDeck deck{3, 2, 4, R"([evaluation]
every_steps = 2
[log]
parameter_hash_every_steps = 1
)", 24, 48};

class EmulatedRun : public RunFolder {
 protected:
  EmulatedRun() : RunFolder(text_of_documents(16), deck.text()) {}

  Outcome run(const std::string& name, int ranks, std::vector<std::string> overrides,
              const std::string& environment = "", const std::string& program = "") {
    overrides.push_back("data.cache=" + (folder / "cache").string());
    return llmtrain({ranks, 1, arguments(name, overrides), program, environment});
  }
  /// The ledger, or the output if the run failed.
  std::string ledger_of(int ranks, const std::vector<std::string>& overrides, const std::string& environment = "") {
    const std::string name = "run" + std::to_string(++runs_);
    const Outcome outcome = run(name, ranks, overrides, environment);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.exit_code == 0 ? ledger(name) : outcome.output + name;
  }
  /// The weights of a checkpoint, exported to a Hugging Face folder.
  std::string exported(const std::string& name, int64_t step, const std::string& program) {
    const std::string out = (folder / ("exported" + std::to_string(++runs_))).string();
    const Outcome outcome = shell(program + " export " + checkpoint(name, step).string() + " --output " + out);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_file(fs::path(out) / "model.safetensors");
  }
  static std::string host(const char* program) { return programs::host_build + "/" + program; }

 private:
  int runs_ = 0;
};

// Products of several experts are one launch, which other experts share on other layouts.
TEST_F(EmulatedRun, ExpertsHaveOneLedger) {
  const auto ledger = [&](int ranks, std::vector<std::string> keys) {
    for (const char* key : {"model.family=mixtral", "model.n_experts=8", "precision.compute=bf16"})
      keys.emplace_back(key);
    return ledger_of(ranks, keys);
  };
  const std::string expected = ledger(1, {});
  EXPECT_EQ(ledger(2, {"parallel.expert=2", "parallel.zero=3"}), expected);
  EXPECT_NE(ledger(1, {"run.seed=2"}), expected) << "control";
}

TEST_F(EmulatedRun, LedgerDoesNotDependOnWhenStreamsDoTheirWork) {
  for (const char* compute : {"fp32", "bf16"}) {
    const std::vector<std::string> overrides = {std::string("precision.compute=") + compute};
    const std::string expected = ledger_of(1, overrides);
    EXPECT_NE(ledger_of(1, {overrides[0], "run.seed=2"}), expected) << "control";
    for (const char* order : {"eager", "1", "2"}) {
      EXPECT_EQ(ledger_of(1, overrides, std::string("LLMTRAIN_EMULATOR_ORDER=") + order), expected) << order;
    }
  }
}

TEST_F(EmulatedRun, LedgerIsIdenticalForRanksAndStages) {
  const std::string expected = ledger_of(1, {});
  for (const char* stage : {"2", "3"}) {
    EXPECT_EQ(ledger_of(1, {std::string("parallel.zero=") + stage}), expected) << "stage " << stage;
  }
  EXPECT_EQ(ledger_of(1, {"memory.recompute=block"}), expected) << "recomputed";
  const std::string four_gpus = "LLMTRAIN_EMULATOR_DEVICES=4 ";
  for (const char* stage : {"0", "1", "3"}) {
    EXPECT_EQ(ledger_of(2, {std::string("parallel.zero=") + stage}, four_gpus), expected) << "2 ranks, stage " << stage;
  }
  EXPECT_EQ(ledger_of(2, {"parallel.zero=3"}, "LLMTRAIN_EMULATOR_DEVICES=1"), expected) << "2 ranks share a GPU";
  EXPECT_EQ(ledger_of(3, {"parallel.zero=2"}, four_gpus + "LLMTRAIN_EMULATOR_ORDER=3"), expected)
      << "3 ranks, by chance";
}

// The first step overflows on all ranks; the schedule waits for the second one, whose scale is half as large.
TEST_F(EmulatedRun, AnOverflowOfFp16HalvesTheScaleAndSkipsItsStep) {
  const std::vector<std::string> settings = {"run.max_steps=4", "precision.compute=fp16",
                                             "precision.initial_loss_scale=2097152"};
  const auto with = [&](const char* more) {
    std::vector<std::string> all = settings;
    all.emplace_back(more);
    return all;
  };
  const std::string expected = ledger_of(1, settings);
  std::vector<nlohmann::json> steps;
  std::istringstream text(expected);
  for (std::string line; std::getline(text, line);) {
    if (const auto json = nlohmann::json::parse(line); json.contains("samples")) steps.push_back(json);
  }
  ASSERT_EQ(steps.size(), 4U);
  const auto number = [&](size_t step, const char* key) {
    return std::strtod(steps[step][key].get<std::string>().c_str(), nullptr);
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE(steps[i].dump());
    const bool overflows = i == 0;
    EXPECT_EQ(number(i, "loss_scale"), overflows ? 2097152 : 1048576);
    EXPECT_EQ(std::isfinite(number(i, "grad_norm")), !overflows);
    EXPECT_EQ(steps[i].contains("skipped_steps"), overflows);
    EXPECT_EQ(number(i, "learning_rate") == 0, i < 2);
  }
  EXPECT_EQ(steps[1]["parameters"], steps[0]["parameters"]);
  EXPECT_NE(steps[2]["parameters"], steps[0]["parameters"]);
  for (const char* stage : {"parallel.zero=1", "parallel.zero=3"}) {
    EXPECT_EQ(ledger_of(2, with(stage), "LLMTRAIN_EMULATOR_DEVICES=2"), expected) << stage;
  }
  EXPECT_NE(ledger_of(1, with("precision.loss_scale_hysteresis=2")), expected) << "control";
}

TEST_F(EmulatedRun, Tf32IsNotFp32AndTheSameOnAllRanks) {
  const std::string two_gpus = "LLMTRAIN_EMULATOR_DEVICES=2";
  const std::string expected = ledger_of(1, {"precision.compute=tf32"});
  EXPECT_NE(ledger_of(1, {"precision.compute=fp32"}), expected) << "it must show, or it was not used";
  for (const char* stage : {"parallel.zero=1", "parallel.zero=3"}) {
    EXPECT_EQ(ledger_of(2, {"precision.compute=tf32", stage}, two_gpus), expected) << stage;
  }
}

// Two ranks use the GPUs of the list in the order of their addresses; a single rank uses the first.
TEST_F(EmulatedRun, CudaVisibleDevicesNamesTheGpusOfTheRanks) {
  const std::string listed = "LLMTRAIN_EMULATOR_DEVICES=4 CUDA_VISIBLE_DEVICES=3,1 ";
  EXPECT_EQ(ledger_of(2, {"parallel.zero=3"}, listed), ledger_of(1, {}));
  for (const auto& [ranks, rank, gpu] : {std::tuple(2, "0", "01"), {2, "1", "03"}, {1, "0", "03"}}) {
    const std::string fault = std::string("LLMTRAIN_EMULATOR_FAULT='start ") + rank + " 0'";
    const Outcome outcome = run("broken", ranks, {}, listed + fault);
    EXPECT_EQ(outcome.exit_code, 69) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(std::string("GPU 0000:") + gpu + ":00.0 of ")) << rank << " of " << ranks;
  }
  const std::string one = "LLMTRAIN_EMULATOR_DEVICES=4 CUDA_VISIBLE_DEVICES=2";
  EXPECT_THAT(run("one", 2, {}, one).output, HasSubstr(" share GPU 0000:02:00.0 of ")) << "control";
}

// The host decides about a step's update if it compares losses, or if ranks share a GPU; else the device. A hash of the
// parameters, for which the host waits, follows only the last step.
TEST_F(EmulatedRun, LedgerIsTheSameWhoeverDecidesAboutUpdates) {
  const std::vector<std::string> common = {"log.parameter_hash_every_steps=3", "optimizer.max_grad_norm=0.5"};
  const auto ledger_with = [&](int ranks, const std::string& more, const std::string& environment) {
    std::vector<std::string> all = common;
    all.push_back(more);
    return ledger_of(ranks, all, environment);
  };
  const std::string expected = ledger_with(1, "divergence.spike_z_score=1e9", "");
  EXPECT_NE(ledger_of(1, {common[0], "optimizer.max_grad_norm=0.4"}), expected) << "control: gradients are clipped";
  EXPECT_EQ(ledger_with(1, "parallel.zero=0", ""), expected);
  EXPECT_EQ(ledger_with(1, "parallel.zero=3", "LLMTRAIN_EMULATOR_ORDER=4"), expected);
  for (const auto& [ranks, more] : {std::pair(2, "parallel.zero=0"), std::pair(2, "parallel.zero=3"),
                                    std::pair(3, "parallel.zero=2"), std::pair(4, "parallel.zero=1")}) {
    EXPECT_EQ(ledger_with(ranks, more, "LLMTRAIN_EMULATOR_DEVICES=4"), expected) << ranks << " ranks, " << more;
  }
  EXPECT_EQ(ledger_with(3, "parallel.zero=1", "LLMTRAIN_EMULATOR_DEVICES=4 LLMTRAIN_EMULATOR_ORDER=5"), expected);
  EXPECT_EQ(ledger_with(2, "parallel.zero=2", "LLMTRAIN_EMULATOR_DEVICES=1"), expected) << "2 ranks share a GPU";
}

TEST_F(EmulatedRun, RanksThatShareAGpuSaySoAndLeadTheSameLedger) {
  const std::string expected = ledger_of(1, {});
  for (const auto& [ranks, stage] : {std::pair(2, "3"), std::pair(3, "1")}) {
    const std::string name = "shared" + std::to_string(ranks), zero = std::string("parallel.zero=") + stage;
    const Outcome outcome = run(name, ranks, {zero}, "LLMTRAIN_EMULATOR_DEVICES=" + std::to_string(ranks - 1));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(" share GPU 0000:00:00.0 of "));
    EXPECT_EQ(ledger(name), expected) << ranks << " ranks";
  }
  EXPECT_THAT(run("apart", 2, {}, "LLMTRAIN_EMULATOR_DEVICES=2").output, Not(HasSubstr("share GPU"))) << "control";
}

TEST_F(EmulatedRun, AttentionThatIsAskedForMustBeThere) {
  const Outcome outcome = run("cudnn", 3, {}, "LLMTRAIN_EMULATOR_DEVICES=3 LLMTRAIN_ATTENTION=cudnn");
  EXPECT_EQ(outcome.exit_code, 66) << outcome.output;
  const std::string message = "LLMTRAIN_ATTENTION is 'cudnn', but this program was built without";
  EXPECT_THAT(outcome.output, HasSubstr(message));
  EXPECT_EQ(outcome.output.find(message), outcome.output.rfind(message)) << "one message: " << outcome.output;
  EXPECT_EQ(run("own", 3, {}, "LLMTRAIN_EMULATOR_DEVICES=3 LLMTRAIN_ATTENTION=own").exit_code, 0) << "control";
}

// Memory of the GPU, not of the process on the host: with its context and the workspace of products, and without.
TEST_F(EmulatedRun, MemoryOfTheGpuIsTheEstimate) {
  constexpr double context = 512.0 * (1 << 20), products = 64.0 * (1 << 20);
  int runs = 0;
  const auto measure = [&](int ranks, const std::string& gpus, const char* layers) {
    const std::string environment = "LLMTRAIN_EMULATOR_DEVICES=" + gpus, name = "memory" + std::to_string(++runs);
    std::vector<std::string> overrides = {"model.d_model=192", std::string("model.n_layers=") + layers,
                                          "run.max_steps=1", "log.every_steps=1"};
    const Outcome outcome = run(name, ranks, overrides, environment);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    const std::string lines = read_file(folder / name / "metrics.jsonl");
    const auto metrics = nlohmann::json::parse(lines.substr(0, lines.find('\n')), nullptr, false);
    overrides.insert(overrides.end(), {"--estimate", "--json", "--ranks", std::to_string(ranks)});
    const Outcome planned = run(name, 1, overrides);
    EXPECT_EQ(planned.exit_code, 0) << planned.output;
    const auto estimate = nlohmann::json::parse(planned.output.substr(planned.output.find('{')), nullptr, false);
    if (metrics.is_discarded() || estimate.is_discarded()) return 0.0;
    const double taken = metrics["memory"], total = estimate["bytes_per_rank"]["total"];
    EXPECT_NEAR((taken - context) / (total - context), 1, 0.05) << metrics << estimate;
    const double plan = taken - metrics["memory_libraries"].get<double>() - products;
    EXPECT_NEAR(plan / metrics["memory_planned"].get<double>(), 1, 0.05) << metrics;
    return plan;
  };
  const double small = measure(1, "1", "2");
  EXPECT_GT(measure(1, "1", "6"), 1.5 * small) << "control: more layers";
  EXPECT_GT(measure(2, "2", "2"), 0) << "by NCCL";
  EXPECT_GT(measure(2, "1", "2"), 0) << "ranks that share a GPU";
}

// NCCL accepts two partitions of one GPU for two ranks; their memory is not shared.
TEST_F(EmulatedRun, PartsOfAGpuHaveMemoryOfTheirOwn) {
  const std::string memory = " LLMTRAIN_EMULATOR_MEMORY=600000000";  // 256 MiB per rank are left free
  const Outcome shared = run("one", 2, {}, "LLMTRAIN_EMULATOR_DEVICES=1" + memory);
  EXPECT_EQ(shared.exit_code, 78) << shared.output;
  EXPECT_THAT(shared.output, HasSubstr("not enough memory"));
  const Outcome parts = run("parts", 2, {}, "LLMTRAIN_EMULATOR_DEVICES=2 LLMTRAIN_EMULATOR_MIG=1" + memory);
  EXPECT_EQ(parts.exit_code, 0) << parts.output;
  EXPECT_THAT(parts.output, HasSubstr(" share GPU 0000:00:00.0 of "));
}

TEST_F(EmulatedRun, LedgerIsIdenticalWhereverTheStateLies) {
  const auto offload = [](const char* stage, const char* optimizer, const char* parameters) {
    return std::vector<std::string>{std::string("parallel.zero=") + stage,
                                    std::string("parallel.offload_optimizer=") + optimizer,
                                    std::string("parallel.offload_parameters=") + parameters};
  };
  for (const char* compute : {"fp32", "bf16"}) {
    const std::string precision = std::string("precision.compute=") + compute;
    const std::string expected = ledger_of(1, {precision});
    for (const auto& [ranks, overrides] :
         {std::pair(1, offload("0", "cpu", "none")), std::pair(1, offload("3", "cpu", "cpu")),
          std::pair(2, offload("1", "cpu", "none")), std::pair(2, offload("3", "cpu", "cpu")),
          std::pair(2, offload("3", "none", "cpu"))}) {
      std::vector<std::string> all = overrides;
      all.push_back(precision);
      EXPECT_EQ(ledger_of(ranks, all, "LLMTRAIN_EMULATOR_DEVICES=2"), expected)
          << ranks << " ranks, " << testing::PrintToString(all);
    }
    EXPECT_NE(ledger_of(1, {precision, "parallel.offload_optimizer=cpu", "optimizer.beta2=0.951"}), expected)
        << "the smallest change of the update must show";
  }
}

TEST_F(EmulatedRun, OffloadedRunsGoOnAsResidentOnesAndBack) {
  const std::vector<std::string> resident = {"checkpoint.every_steps=1", "precision.compute=bf16"};
  ASSERT_EQ(run("resident", 1, resident).exit_code, 0);
  for (const std::string place : {"cpu", "nvme"}) {
    SCOPED_TRACE(place);
    std::vector<std::string> offloaded = resident;
    offloaded.insert(offloaded.end(), {"parallel.zero=3", "parallel.offload_optimizer=" + place,
                                       "parallel.offload_parameters=" + place});
    if (place == "nvme") offloaded.push_back("parallel.offload_path=" + folder.text());
    const std::string there = "on_" + place, back = "back_from_" + place;
    cut_off("resident", there, 1);
    const Outcome outcome = run(there, 2, offloaded, "LLMTRAIN_EMULATOR_DEVICES=2");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("resumed"));
    EXPECT_EQ(ledger(there), ledger("resident"));
    cut_off(there, back, 2);
    ASSERT_EQ(run(back, 1, resident).exit_code, 0);
    EXPECT_EQ(ledger(back), ledger("resident"));
  }
}

// The passes of a group between the first and the last: they contain no transfer.
TEST_F(EmulatedRun, SeveralRanksHaveGraphsOfPassesInWhichNothingTravels) {
  std::vector<std::string> overrides = {"model.dropout=0", "data.packing=wrap", "data.cross_document_attention=true",
                                        "batch.global=16", "parallel.reduction_groups=2"};
  const std::string two_gpus = "LLMTRAIN_EMULATOR_DEVICES=2";
  for (const char* stage : {"0", "1"}) {
    const std::string name = std::string("graphs") + stage, zero = std::string("parallel.zero=") + stage;
    std::vector<std::string> graphs = overrides, plain = overrides;
    graphs.push_back(zero);
    plain.insert(plain.end(), {zero, "parallel.cuda_graphs=false"});
    const Outcome outcome = run(name, 2, graphs, two_gpus);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const bool refuses = std::getenv("LLMTRAIN_EMULATOR_REFUSALS") != nullptr;
    EXPECT_THAT(outcome.output,
                HasSubstr(refuses ? "graphs     " : "graphs     1 recorded; 5 of 12 passes ran as graphs"));
    EXPECT_EQ(ledger(name), ledger_of(2, plain, two_gpus)) << "stage " << stage;
  }
  overrides.emplace_back("parallel.zero=3");
  EXPECT_THAT(run("travels", 2, overrides, two_gpus).output,
              HasSubstr("graphs     none: the passes communicate weights or gradients"));
}

// The profile shows a transfer's time where it starts and where it is waited for.
TEST_F(EmulatedRun, IsProfiledWithoutMemoryToSpare) {
  const std::string small = "LLMTRAIN_EMULATOR_DEVICES=2 LLMTRAIN_EMULATOR_MEMORY=1000000000";
  const Outcome outcome = run("profile", 2, {"log.profile=1", "parallel.zero=3"}, small);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("no memory is left to measure the limits of this GPU"));
  EXPECT_THAT(outcome.output, HasSubstr("all-gather"));
  EXPECT_EQ(ledger("profile"), ledger_of(1, {})) << "with a profile or without";
}

TEST_F(EmulatedRun, ShowsItsSpansAsRangesOfNvtx) {
  if (programs::span_tool.empty()) GTEST_SKIP() << "no headers of NVTX were found";
  const fs::path log = folder / "nvtx";
  const std::string tool = "NVTX_INJECTION64_PATH=" + programs::span_tool + " SPAN_TOOL_LOG=" + log.string();
  EXPECT_EQ(ledger_of(1, {}, tool), ledger_of(1, {})) << "with a tool or without";
  const SpanLog seen = read_span_log(log);
  EXPECT_EQ(seen.begun.at("step"), deck.steps);
  for (const char* phase : {"step/data", "step/forward", "step/backward", "step/update"}) {
    EXPECT_GE(seen.begun.count(phase), 1) << phase;
  }
  EXPECT_GE(seen.categories.size(), 2) << "phases and kernels";
}

TEST_F(EmulatedRun, GoesOnAsIfNeverInterrupted) {
  // A part of 1.5 MB of state comes from a copy, the rest from the state itself while the next step computes.
  std::vector<std::string> overrides = {"checkpoint.every_steps=1", "model.d_model=72"};
  const std::string expected = ledger_of(1, overrides);
  overrides.push_back("checkpoint.buffer=1048576");
  const std::string two_gpus = "LLMTRAIN_EMULATOR_DEVICES=2";
  for (const int ranks : {1, 2}) {
    const std::string name = "cut" + std::to_string(ranks), resumed = "resumed" + std::to_string(ranks);
    Outcome outcome = run(name, ranks, overrides, two_gpus);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    cut_off(name, resumed, 1);
    std::vector<std::string> others = overrides;
    others.emplace_back("parallel.zero=3");
    outcome = run(resumed, 3 - ranks, others, two_gpus);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(ledger(resumed), expected) << "begun by " << ranks << " ranks";
  }
}

// State that exceeds the copy is read by a thread of the saver's own, for which CUDA would use the node's first GPU.
// (The emulator ends a process that creates a second context.)
TEST_F(EmulatedRun, StateThatIsReadInTheBackgroundIsOnTheRanksOwnGpu) {
  const Outcome outcome = run("wide", 2,
                              {"model.d_model=192", "run.max_steps=2", "checkpoint.every_steps=1",
                               "checkpoint.buffer=1048576", "evaluation.every_steps=0", "evaluation.at_end=false"},
                              "LLMTRAIN_EMULATOR_DEVICES=2");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_GT(fs::file_size(checkpoint("wide", 2) / "shard-00001-of-00002.h5"), 1U << 20) << "more than the buffer";
}

TEST_F(EmulatedRun, CheckpointsAreExchangedWithTheHost) {
  if (!fs::exists(host("llmtrain")) || !fs::exists(host("llmtool"))) GTEST_SKIP() << "no host build: " << host("");
  // Steps that change no parameter: the output equals the input.
  const std::vector<std::string> still = {"schedule.learning_rate=0", "optimizer.weight_decay=0",
                                          "checkpoint.every_steps=1", "precision.compute=fp32"};
  for (const bool from_host : {true, false}) {
    const std::string name = from_host ? "from_host" : "to_host";
    const std::string first = from_host ? host("llmtrain") : "", second = from_host ? "" : host("llmtrain");
    const std::string own_tool = programs::llmtool, first_tool = from_host ? host("llmtool") : own_tool;
    std::vector<std::string> overrides = {"checkpoint.every_steps=1", "precision.compute=fp32"};
    Outcome outcome = run(name, 1, overrides, "", first);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const std::string weights = exported(name, 3, first_tool);
    EXPECT_EQ(exported(name, 3, from_host ? own_tool : host("llmtool")), weights) << "read by the other program";
    EXPECT_NE(exported(name, 2, first_tool), weights) << "control";
    overrides = still;
    overrides.push_back("run.max_steps=4");
    outcome = run(name, 1, overrides, "", second);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(exported(name, 4, own_tool), weights);
  }
}

// Between steps, where the state is checked before it is saved.
TEST_F(EmulatedRun, AKernelThatHangsBetweenStepsEndsTheRun) {
  const std::string hangs = "LLMTRAIN_EMULATOR_FAULT='kernel 0 12 Squares' timeout -s KILL 60";
  const std::vector<std::string> overrides = {"checkpoint.every_steps=1", "watchdog.stuck_after=2s"};
  const Outcome outcome = run("hangs", 1, overrides, hangs);
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("step 1, waiting for the device"));
  EXPECT_THAT(ledger("hangs"), HasSubstr("\"step\":1,")) << "the step was over";
}

TEST_F(EmulatedRun, WithoutAGpuTheErrorSaysWhatToDo) {
  const Outcome outcome = run("none", 1, {}, "LLMTRAIN_EMULATOR_DEVICES=0");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("finds none on this machine"));
}

TEST_F(EmulatedRun, AGpuTooOldIsAnError) {
  const Outcome outcome = run("old", 2, {}, "LLMTRAIN_EMULATOR_CAPABILITY=75");
  EXPECT_EQ(outcome.exit_code, 69);
  EXPECT_THAT(outcome.output, HasSubstr("needs compute capability 8.0 or newer"));
}

TEST_F(EmulatedRun, AGpuTooSmallIsAnError) {
  const Outcome outcome = run("small", 1, {}, "LLMTRAIN_EMULATOR_MEMORY=100000");
  EXPECT_EQ(outcome.exit_code, 78);
  EXPECT_THAT(outcome.output, HasSubstr("not enough memory: the run needs"));
  EXPECT_THAT(outcome.output, HasSubstr("per rank, and a rank's share of the GPU is"));
}

TEST_F(EmulatedRun, GeneratesTheTextThatTheHostGenerates) {
  ASSERT_EQ(run("model", 1, {"precision.compute=fp32"}).exit_code, 0);
  const std::string request =
      " generate --model " + checkpoint("model", 3).string() + " --prompt Document --greedy --max-new-tokens 12";
  const Outcome outcome = shell(programs::llmtool + request);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_GT(outcome.output.size(), 4U);
  if (!fs::exists(host("llmtool"))) GTEST_SKIP() << "no host build: " << host("");
  EXPECT_EQ(outcome.output, shell(host("llmtool") + request).output);
}

/// Instruction tuning on the rows that TRL was given.
class EmulatedTuning : public EmulatedRun {
 protected:
  /// The first two lines of the ledger.
  std::vector<nlohmann::json> two_steps(const std::string& name, const std::vector<std::string>& keys, int ranks = 1,
                                        const std::string& program = "") {
    const std::string path = (folder / "sft.ini").string();
    write_file(path, "[run]\ntask = sft\nmax_steps = 2\noutput = " + folder.text() + "\n[model]\npath = " + reference +
                         "/model\n[data]\ntrain = " + reference +
                         "/messages.jsonl\nvalidation_fraction = 0\nshuffle = false\n[batch]\nsequence_length = "
                         "512\nmicro = 1\nglobal = 4\n[optimizer]\nweight_decay = 0\n[precision]\ncompute = "
                         "fp32\n[checkpoint]\nat_end = false\n");
    std::vector<std::string> arguments = {path, "run.name=" + name};
    arguments.insert(arguments.end(), keys.begin(), keys.end());
    const Outcome outcome = llmtrain({ranks, 1, arguments, program, ""});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::istringstream lines(ledger(name));
    std::vector<nlohmann::json> steps(2);
    for (nlohmann::json& step : steps) {
      std::string line;
      std::getline(lines, line);
      step = nlohmann::json::parse(line);
    }
    return steps;
  }
  static double number(const nlohmann::json& step, const char* key) {
    return std::strtod(step[key].get<std::string>().c_str(), nullptr);
  }

  const std::string reference = (source_folder() / "tests/reference/sft").string();
};

// Conversations, masks and frozen units on the GPU, as TRL has them.
TEST_F(EmulatedTuning, OfFrozenLayersIsTrls) {
  const std::vector<nlohmann::json> ours = two_steps("sft", {"run.finetuning=freeze"});
  const nlohmann::json expected = nlohmann::json::parse(read_file(reference + "/expected.json"));
  for (size_t step = 0; step < 2; ++step) {
    for (const char* key : {"loss", "grad_norm"}) {
      const double theirs = expected["freeze_last_2"][key][step];
      EXPECT_NEAR(number(ours[step], key), theirs, 2e-5 * theirs) << key;
      EXPECT_GT(std::abs(number(ours[step], key) - expected["freeze_first_1"]["grad_norm"][step].get<double>()), 1e-3)
          << "control";
    }
  }
}

TEST_F(EmulatedTuning, OfWeightedTokensIsTrls) {
  const std::vector<nlohmann::json> ours = two_steps("dft", {"run.task=dft"});
  const nlohmann::json expected = nlohmann::json::parse(read_file(reference + "/expected.json"));
  for (size_t step = 0; step < 2; ++step) {
    for (const char* key : {"loss", "grad_norm"}) {
      const double theirs = expected["dft"][key][step];
      EXPECT_NEAR(number(ours[step], key), theirs, 2e-5 * theirs) << key;
      EXPECT_GT(std::abs(number(ours[step], key) / expected["messages"][key][step].get<double>() - 1), 0.5)
          << "control";
    }
  }
}

// Adapters with magnitudes and dropout beside a sharded base: the kernels of adapters in whole steps.
TEST_F(EmulatedTuning, OfAdaptersIsTheHosts) {
  const std::vector<std::string> dora = {"run.finetuning=lora", "lora.r=4", "lora.dora=true", "lora.dropout=0.1",
                                         "log.parameter_hash_every_steps=1"};
  const auto with = [&](const char* key) {
    std::vector<std::string> keys = dora;
    keys.emplace_back(key);
    return keys;
  };
  const std::vector<nlohmann::json> one = two_steps("one", dora);
  EXPECT_EQ(two_steps("two", with("parallel.zero=3"), 2), one);
  const std::vector<nlohmann::json> seed = two_steps("seed", with("run.seed=7"));
  EXPECT_NE(seed, one) << "control";
  if (!fs::exists(host("llmtrain"))) GTEST_SKIP() << "no host build: " << host("");
  const std::vector<nlohmann::json> on_host = two_steps("host", dora, 1, host("llmtrain"));
  for (size_t step = 0; step < 2; ++step) {
    for (const char* key : {"loss", "grad_norm"}) {
      const double theirs = number(on_host[step], key);
      EXPECT_NEAR(number(one[step], key), theirs, 2e-5 * theirs) << key;
    }
    EXPECT_GT(std::abs(number(seed[step], "grad_norm") / number(on_host[step], "grad_norm") - 1), 1e-3) << "control";
  }
}

}  // namespace
}  // namespace llmtrain::test
