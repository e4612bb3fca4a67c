#include "fault/campaign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "core/error.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

void Score::fail(const std::string& what) {
  ++failures_;
  std::cerr << "FAILED: " << what << '\n';
}

int64_t Score::tried() const {
  int64_t n = 0;
  for (const auto& [kind, count] : kinds_) n += count;
  return n;
}

std::string Score::kinds() const {
  std::string text;
  for (const auto& [kind, count] : kinds_) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, kind);
  return text;
}

Rig::Rig() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "Line " + std::to_string(i * i % 71) + " has some words to train on.\n";
  write_file(folder / "text.txt", text);
  write_file(folder / "deck.ini",
             fmt::format("[run]\nmax_steps = 20\noutput = {0}/runs\n[model]\nd_model = 16\nn_layers = 1\nn_heads = 2\n"
                         "dropout = 0.1\n[data]\ntrain = {0}/text.txt\ncache = {0}/cache\n[batch]\nsequence_length = "
                         "16\nglobal = 4\n[evaluation]\nevery_steps = 6\n[precision]\ncompute = fp32\n[log]\n"
                         "every_steps = 5\n[checkpoint]\nevery_steps = 5\nkeep = 2\n",
                         folder.text()));
}

std::string Rig::command(const std::string& name, int ranks, const std::string& arguments,
                         const Injection& fault) const {
  std::string command =
      fmt::format("ulimit -c 0; export OMP_NUM_THREADS=1; timeout -s KILL {} ", static_cast<int>(120 * patience()));
  if (ranks_per_node > 0 && ranks > 1)
    command = fmt::format("export LLMTRAIN_RANKS_PER_NODE={}; ", ranks_per_node) + command;
  if (ranks > 1) command += fmt::format("{} {} ", programs::mpirun, ranks);
  if (!fault.how.empty()) {
    command += fmt::format(
        "env LD_PRELOAD={} LLMTRAIN_FAULT_HOW={} LLMTRAIN_FAULT_AT={} LLMTRAIN_FAULT_PATH='{}' LLMTRAIN_FAULT_MS={} "
        "LLMTRAIN_FAULT_CALLS={} LLMTRAIN_FAULT_JOB={} ",
        programs::fault_library, fault.how, fault.at, fault.path.empty() ? folder_of(name) : fault.path,
        fault.milliseconds, fault.calls, (folder / "job").string());
    if (fault.signal != 0) {
      command += fmt::format("LLMTRAIN_FAULT_SIGNAL={} LLMTRAIN_FAULT_AGAIN={} ", fault.signal, fault.again);
    }
    if (fault.rank >= 0) command += fmt::format("LLMTRAIN_FAULT_RANK={} ", fault.rank);
    if (fault.how == "count") command += fmt::format("LLMTRAIN_FAULT_COUNT={} ", (folder / "count").string());
  }
  if (!fault.numbers.empty()) command += fmt::format("env LLMTRAIN_TEST_FAULTS='{}' ", fault.numbers);
  if (fault.names_hosts) {
    command += "sh -c 'SLURMD_NODENAME=n${OMPI_COMM_WORLD_RANK:-0} exec \"$0\" \"$@\"' ";
  }
  return command + fmt::format("{} {} run.name={} {}", fault.numbers.empty() ? programs::llmtrain : programs::faulty,
                               (folder / "deck.ini").string(), name, arguments);
}

Outcome Rig::run(const std::string& name, int ranks, const std::string& arguments, const Injection& fault) const {
  fs::remove(folder / "job");
  return shell(command(name, ranks, arguments, fault));
}

std::vector<int64_t> Rig::counted(int ranks, const std::string& arguments, const Injection& what) const {
  Injection fault = what;
  fault.how = "count";
  fault.at = 0;
  const Outcome outcome = run("counted", ranks, arguments, fault);
  if (outcome.exit_code != 0) throw std::runtime_error("a run without faults failed:\n" + outcome.output);
  remove("counted");
  std::vector<int64_t> counts(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    counts[static_cast<size_t>(rank)] = std::stoll(read_file(folder / ("count." + std::to_string(rank))));
  }
  return counts;
}

std::string Rig::ledger(const std::string& name) const {
  const std::string path = folder_of(name) + "/ledger.jsonl";
  return fs::exists(path) ? read_file(path) : "";
}

const std::string& Rig::undisturbed(const std::string& arguments, const std::string& numbers) {
  const std::string key = arguments + '\n' + numbers;
  const auto found = undisturbed_.find(key);
  if (found != undisturbed_.end()) return found->second;
  const Outcome outcome = run("undisturbed", 1, arguments, {.numbers = numbers});
  if (outcome.exit_code != 0) throw std::runtime_error("a run without faults failed:\n" + outcome.output);
  std::string text = ledger("undisturbed");
  remove("undisturbed");
  return undisturbed_[key] = std::move(text);
}

std::vector<std::string> Rig::published(const std::string& name) const {
  std::vector<std::string> names;
  for (const int64_t step : published_steps(checkpoints_of(name))) names.push_back(checkpoint_name(step));
  std::ranges::reverse(names);
  return names;
}

void Rig::copy(const std::string& from, const std::string& to) const {
  fs::copy(folder_of(from), folder_of(to), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

void Rig::remove(const std::string& name) const { fs::remove_all(folder_of(name)); }

void Rig::expect_whole_checkpoints(const std::string& name, const std::string& what, Score& score) const {
  const std::unique_ptr<Communicator> alone = make_local_communicator();
  for (const std::string& one : published(name)) {
    try {
      verify_checkpoint(checkpoints_of(name) + "/" + one, *alone);
    } catch (const UserError& error) {
      score.fail(what + ": a published checkpoint is not whole: " + error.what());
    }
  }
}

std::string Rig::expect_recovery(const std::string& name, int ranks, const std::string& arguments,
                                 const std::string& what, Score& score, const std::string& numbers) {
  const Outcome again = run(name, ranks, arguments, {.numbers = numbers});
  if (again.exit_code != 0) {
    score.fail(fmt::format("{}: the same command ends with exit code {}:\n{}", what, again.exit_code, again.output));
  } else if (ledger(name) != undisturbed(arguments, numbers)) {
    score.fail(what + ": another ledger than that of an undisturbed run");
  } else if (contains(again.output, "cannot be used:")) {
    score.fail(what + ": a published checkpoint was refused:\n" + again.output);
  }
  remove(name);
  return again.output;
}

void Rig::expect_nothing_runs(const std::string& name, const std::string& what, Score& score) const {
  const Outcome left =
      shell(fmt::format("for i in $(seq {}); do pgrep -f '{} run.name={}( |$)' | grep -vw $$ || exit 0; "
                        "sleep 0.1; done; exit 1",
                        static_cast<int>(150 * patience()), (folder / "deck.ini").string(), name));
  if (left.exit_code != 0) score.fail(what + ": processes are left: " + left.output);
}

double patience() {
  const char* given = std::getenv("LLMTRAIN_FAULT_PATIENCE");
  return given != nullptr ? std::max(1.0, std::atof(given)) : 1;
}

int64_t last_step(const std::string& ledger) {
  const size_t end = ledger.rfind('\n');  // an incomplete line may follow
  if (end == std::string::npos) return 0;
  const size_t at = ledger.rfind("\"step\":", end);
  return at == std::string::npos ? 0 : std::atoll(ledger.c_str() + at + 7);
}

int64_t resumed_step(const std::string& output) {
  const size_t line = output.find("\nresumed "), at = output.find(", step ", line);
  return line == std::string::npos || at == std::string::npos ? 0 : std::atoll(output.c_str() + at + 7);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace llmtrain::test
