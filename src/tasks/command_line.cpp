#include "tasks/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "tasks/estimate/network.hpp"

namespace llmtrain {
namespace {

constexpr std::array<std::string_view, 9> option_names = {
    "--help", "--version", "--check", "--estimate", "--measure", "--json", "--ranks", "--ranks-per-node", "--network"};

[[noreturn]] void refuse(const std::string& what) {
  throw UserError(ExitCode::command_line, fmt::format("command line: {} (llmtrain --help shows the usage)", what));
}

void refuse_unknown(const std::vector<std::string>& remaining) {
  for (const std::string& argument : remaining) {
    const std::string name = argument.substr(0, argument.find('='));
    if (name.starts_with("-")) refuse(fmt::format("no such option {}{}", name, did_you_mean(name, option_names)));
    refuse(fmt::format("'{}' is not an option or section.key=value", argument));
  }
}

void check_together(const CommandLine& line) {
  if (line.help || line.version) return;
  if (line.deck.empty()) refuse("no deck is named");
  const size_t dot = line.deck.find('.'), equals = line.deck.find('=');
  if (dot < equals && equals != std::string::npos && line.deck.find('/') == std::string::npos) {
    refuse(fmt::format("give the deck before '{}'", line.deck));
  }
  if (line.check && line.estimate) refuse("--check and --estimate exclude each other");
  if (line.measure && !line.estimate) refuse("--measure needs --estimate");
  if (line.measure && line.network.empty() && (line.ranks != 0 || line.ranks_per_node != 0)) {
    refuse(
        "--measure times this job: start it with that many ranks instead of --ranks or --ranks-per-node, or give "
        "--network to predict other ranks from it");
  }
  if (line.estimate) return;
  if (line.json) refuse("--json needs --estimate");
  if (line.ranks != 0) refuse("--ranks needs --estimate (the launcher sets the number of ranks of a job)");
  if (line.ranks_per_node != 0) refuse("--ranks-per-node needs --estimate");
  if (!line.network.empty()) refuse("--network needs --estimate");
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  CLI::App app;
  app.set_help_flag();  // replaced by a flag with a topic
  app.allow_extras();
  app.add_option("deck", line.deck);
  app.add_option("overrides", line.overrides);
  CLI::Option* help = app.add_option("-h,--help", line.help_topic)->expected(0, 1);
  app.add_flag("--version", line.version)->disable_flag_override();
  app.add_flag("--check", line.check)->disable_flag_override();
  app.add_flag("--estimate", line.estimate)->disable_flag_override();
  app.add_flag("--measure", line.measure)->disable_flag_override();
  app.add_flag("--json", line.json)->disable_flag_override();
  app.add_option("--ranks", line.ranks)->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  app.add_option("--ranks-per-node", line.ranks_per_node)->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  app.add_option("--network", line.network);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    refuse(error.what());
  }
  line.help = help->count() > 0;
  refuse_unknown(app.remaining());
  check_together(line);
  if (app.count("--network") > 0) parse_network(line.network);
  return line;
}

std::string usage_text() {
  return "Usage: llmtrain DECK [section.key=value ...] [option]\n"
         "Trains a language model as described by the deck, on the ranks that mpirun or srun starts.\n\n"
         "  section.key=value         override a key of the deck; the last one of the same key wins\n"
         "  --check                   check the deck and all files it names, and print the resolved deck\n"
         "  --estimate                print the memory of a rank by category, the size of a checkpoint, and a step's "
         "traffic\n"
         "    --ranks N               estimate a job with N ranks instead of this one, and propose context and tensor "
         "ranks,\n"
         "                            ZeRO stage and recomputation for them that fits memory.limit\n"
         "    --ranks-per-node M      on nodes with M ranks each\n"
         "    --network SPEED[,latency=TIME][,ports=N][,flops=RATE][,sockets=N,memory=SPEED]\n"
         "                            also predict the time of this traffic and, with --measure or flops (FLOP/s of a "
         "rank),\n"
         "                            of a step: 200Gb/s,latency=2us\n"
         "    --measure               also run a few steps, to predict the time of a step and of the run\n"
         "    --json                  print JSON\n"
         "  -h, --help [TOPIC]        print this text and all keys of a deck, those of a task or section, or one "
         "section.key\n"
         "  --version                 print version, device and libraries\n\n"
         "Exit codes: 0 finished, 64 command line, 65 bad content, 66 missing input, 69 no device, 70 internal error,\n"
         "73 output refused, 74 input/output error, 75 stopped and resumable, 76 a rank was lost, 78 deck, 79 "
         "diverged.\n";
}

}  // namespace llmtrain
