// The log of a run of 300 steps whose values oracle_run.py knows, for what other programs read of it.
// sink_run DIRECTORY SINKS [kill:STEP | pending:STEP | rollback:STEP]
//   kill      the process kills itself when it has logged the step
//   pending   the same after an evaluation and samples that the checkpoint of their step does not know of
//   rollback  after the step the run returns once to its checkpoint
// The next process resumes from the checkpoint of every 40th step.

#include <cmath>
#include <csignal>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.hpp"
#include "metrics/run_log.hpp"

namespace llmtrain {
namespace {

struct Checkpoint {
  int64_t step = 0;
  LogState log;
};

class SinkRun {
 public:
  SinkRun(const std::string& directory, const std::string& sinks, const std::string& event, int64_t at)
      : directory_(directory), event_(event), at_(at) {
    options_.run.directory = directory;
    options_.total_steps = 300;
    options_.every_steps = 5;
    options_.every_first = true;
    options_.run.name = "sink_run";
    options_.run.metrics = {"rewards/margins"};
    options_.run.settings = {{"model", "d_model", "16", true}, {"log", "every_steps", "5", false}};
    options_.run.wandb.project = "stories";
    options_.run.wandb.tags = {"a", "b"};
    options_.run.wandb.group = "seeds";
    options_.sinks.clear();
    for (const auto& [name, sink] :
         {std::pair("jsonl", LogConfig::Sink::jsonl), std::pair("tensorboard", LogConfig::Sink::tensorboard),
          std::pair("wandb", LogConfig::Sink::wandb)}) {
      if (sinks.find(name) != std::string::npos) options_.sinks.push_back(sink);
    }
    if (read_checkpoint()) {
      options_.resumed = saved_.log;
      options_.resumed_step = saved_.step;
    }
  }

  void run() {
    RunLog log(options_);
    if (saved_.log.pending.evaluation) evaluate(log, saved_.step);
    for (int64_t step = saved_.step + 1; step <= 300; ++step) {
      log_step(log, step);
      if (event_ == "kill" && step == at_) std::raise(SIGKILL);
      const bool unknown = event_ == "pending" && step == at_;
      if (unknown) save(log, step, {true, true});
      if (step % 20 == 0) evaluate(log, step);
      if (unknown) std::raise(SIGKILL);
      if (step % 40 == 0) save(log, step, {});
      if (event_ != "rollback" || step != at_) continue;
      event_.clear();
      log.roll_back({saved_.step, step, saved_.step, step, "test"}, saved_.log);
      step = saved_.step;
    }
    log.finish("finished");
  }

 private:
  static void log_step(RunLog& log, int64_t step) {
    StepRecord record;
    record.step = step;
    record.learning_rate = 0.001;
    record.loss = 3 * std::exp(-static_cast<double>(step) / 100);
    record.grad_norm = 1 + static_cast<double>(step % 7) / 10;
    record.tokens = 64;
    record.metrics = {{"rewards/margins", "", static_cast<double>(step) / 10}};
    record.seconds = 0.01;
    log.step(record);
  }
  static void evaluate(RunLog& log, int64_t step) {
    log.evaluation({step, 4 * std::exp(-static_cast<double>(step) / 100), 100, 0.1, true});
    if (step % 40 == 0) log.samples({step, {{"Line 1", "\nis # one"}, {"Line 2", " \xFF."}}, 0.1});
  }
  void save(RunLog& log, int64_t step, PendingWork pending) {
    saved_ = {step, log.save()};
    saved_.log.pending = pending;
    const nlohmann::json json = {{"step", step},
                                 {"counters", saved_.log.counters},
                                 {"values", saved_.log.values},
                                 {"pending", pending.evaluation}};
    std::ofstream(directory_ + "/checkpoint.json") << json;
  }
  bool read_checkpoint() {
    std::ifstream file(directory_ + "/checkpoint.json");
    if (!file) return false;
    const nlohmann::json json = nlohmann::json::parse(file);
    saved_.step = json["step"];
    saved_.log.counters = json["counters"];
    for (const auto& [name, value] : json["values"].items()) {
      saved_.log.values[name] = value.is_null() ? NAN : value.get<double>();  // JSON has no infinity
    }
    saved_.log.pending = {json["pending"], json["pending"]};
    return true;
  }

  RunLogOptions options_;
  std::string directory_, event_;
  int64_t at_;
  Checkpoint saved_;
};

}  // namespace
}  // namespace llmtrain

int main(int argc, char** argv) {
  try {
    const std::string event = argc > 3 ? argv[3] : "none:0";
    const size_t colon = event.find(':');
    llmtrain::SinkRun(argv[1], argv[2], event.substr(0, colon), std::stoll(event.substr(colon + 1))).run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
