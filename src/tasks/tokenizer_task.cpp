#include <fmt/format.h>

#include <optional>

#include "core/activity.hpp"
#include "data/dataset.hpp"
#include "data/tokenize/train_tokenizer.hpp"
#include "metrics/console.hpp"
#include "tasks/tasks.hpp"
#include "train/run/job.hpp"
#include "train/run/run_directory.hpp"
#include "train/run/stop_monitor.hpp"

namespace llmtrain {

int run_tokenizer_training(Job& job) {
  Config& config = job.config;
  Communicator& communicator = job.runtime.communicator();
  job.examine(true);
  const bool root = communicator.rank() == 0;
  Console console("", root);
  std::optional<RunDirectory> directory;
  if (open_directory(directory, config.run, comparison_with(config), communicator)) return 0;
  const StopMonitor stop_monitor(config.run, config.checkpoint, root);
  config.add_note(watch_ranks(config.watchdog, config.run.directory(), job.runtime));
  const SectionScope section(Section::data);
  const TrainedTokenizer trained =
      train_deck_tokenizer(config.data, communicator, [&](const std::string& line) { console.print(line); });
  throw_on_all_ranks(communicator, [&] {
    if (!root) return;
    directory->start(write_deck(config));
    write_tokenizer_files(trained, directory->path());
    directory->mark_finished(0);
  });
  const TokenizerTraining training = config.data.bpe.training(config.data.vocab_size, config.data.add_bos);
  console.print(fmt::format("{}: {}", config.run.directory(), describe(trained, training)));
  return 0;
}

}  // namespace llmtrain
