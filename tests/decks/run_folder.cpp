#include "decks/run_folder.hpp"

#include <fmt/format.h>

namespace llmtrain::test {

namespace fs = std::filesystem;

std::string text_of_lines(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += "Line " + std::to_string(i * i % 71) + " has some words to train on.\n";
  return text;
}

std::string text_of_documents(int documents) {
  std::string text;
  for (int i = 0; i < documents; ++i) {
    text += "Document " + std::to_string(i * 7919 % 1000) + " says";
    for (int w = 0; w <= i * 13 % 11; ++w) text += " word" + std::to_string((i * 31 + w * w) % 17);
    text += ".\n\n";
  }
  return text;
}

std::string step_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return "step-" + std::string(8 - digits.size(), '0') + digits;
}

std::string TinyDeck::text() const {
  return "[run]\nmax_steps = " + std::to_string(steps) +
         "\noutput = FOLDER\n[model]\nd_model = 24\nn_layers = 2\nn_heads = 2\n" + model +
         "[data]\ntrain = TEXT\n[batch]\nsequence_length = 32\nglobal = 6\n[precision]\ncompute = fp32\n" + sections;
}

std::string DocumentsDeck::text() const {
  return fmt::format(R"([run]
max_steps = {}
output = FOLDER
[model]
d_model = {}
n_layers = {}
n_heads = 3
dropout = 0.1
[data]
train = TEXT
tokenizer = char
packing = none
document_separator = blank_line
validation_fraction = 0.2
[batch]
sequence_length = {}
micro = 2
global = {}
[schedule]
name = cosine
learning_rate = 3e-3
warmup_steps = 2
{})",
                     steps, channels, layers, length, sequences, sections);
}

std::string slow_steps([[maybe_unused]] int milliseconds) {
#ifdef LLMTRAIN_FAULT_INJECTION
  return "LD_PRELOAD=" + programs::fault_library +
         " LLMTRAIN_FAULT_PATH=ledger.jsonl LLMTRAIN_FAULT_CALLS=write LLMTRAIN_FAULT_HOW=slow LLMTRAIN_FAULT_AT=1 "
         "LLMTRAIN_FAULT_MS=" +
         std::to_string(milliseconds) + " ";
#else
  return "";
#endif
}

RunFolder::RunFolder(const std::string& text, std::string deck) {
  write_file(folder / "text.txt", text);
  for (const auto& [word, path] : {std::pair("TEXT", (folder / "text.txt").string()), {"FOLDER", folder.text()}}) {
    if (const size_t at = deck.find(word); at != std::string::npos) {
      deck.replace(at, std::string_view(word).size(), path);
    }
  }
  write_file(folder / "deck.ini", deck);
}

std::vector<std::string> RunFolder::arguments(const std::string& name,
                                              const std::vector<std::string>& overrides) const {
  std::vector<std::string> all = {(folder / "deck.ini").string(), "run.name=" + name};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return all;
}

Outcome RunFolder::start(const std::string& name, int ranks, const std::vector<std::string>& overrides,
                         const std::string& faults, int threads) const {
  Launch launch{ranks, threads, arguments(name, overrides)};
  if (!faults.empty()) {
    launch.program = programs::faulty;
    launch.environment = "LLMTRAIN_TEST_FAULTS='" + faults + "'";
  }
  return llmtrain(launch);
}

std::string RunFolder::command(const std::string& name, int ranks, const std::string& overrides) const {
  return (ranks > 1 ? programs::mpirun + " " + std::to_string(ranks) + " " : std::string()) + programs::llmtrain + " " +
         (folder / "deck.ini").string() + " run.name=" + name + " " + overrides;
}

Outcome RunFolder::start_and(const std::string& name, int ranks, const std::string& condition,
                             const std::string& action, const std::string& overrides,
                             const std::string& environment) const {
  return shell("ulimit -c 0; run=" + (folder / name).string() +
               "; pid() { cat $run/status/rank-* | sed -n \"s/^{.rank.:$1,.*.pid.:\\([0-9]*\\).*/\\1/p\"; }; (export "
               "OMP_NUM_THREADS=1 " +
               environment + "; exec " + command(name, ranks, overrides) + ") & job=$!; for i in $(seq 2000); do { " +
               condition + "; } 2>/dev/null && break; kill -0 $job 2>/dev/null || break; sleep 0.02; done; " + action +
               "; wait $job; code=$?; exit $code");
}

std::string RunFolder::lines_in_ledger(int lines) {
  return "[ $(wc -l <$run/ledger.jsonl) -ge " + std::to_string(lines) + " ]";
}

std::string RunFolder::linked(const std::string& name, const std::string& link) const {
  const fs::path path = folder / (name + "/checkpoints/" + link);
  return fs::is_symlink(path) ? fs::read_symlink(path).filename().string() : "";
}

void RunFolder::cut_off(const std::string& from, const std::string& to, int64_t step) const {
  fs::remove_all(folder / to);
  fs::copy(folder / from, folder / to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove(folder / (to + "/finished.json"));
  std::vector<fs::path> later;
  for (const auto& entry : fs::directory_iterator(folder / (to + "/checkpoints"))) {
    if (entry.path().filename().string() > step_name(step)) later.push_back(entry.path());
  }
  for (const fs::path& path : later) fs::remove_all(path);
}

}  // namespace llmtrain::test
