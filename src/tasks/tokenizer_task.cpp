#include <fmt/format.h>

#include "core/activity.hpp"
#include "data/dataset.hpp"
#include "data/tokenize/train_tokenizer.hpp"
#include "tasks/job_opening.hpp"

namespace llmtrain {

int run_tokenizer_training(Job& job) {
  const Config& config = job.deck;
  Communicator& communicator = job.runtime.communicator();
  job.examine(true);
  JobOpening opening(job);
  if (opening.is_finished()) return 0;
  const SectionScope section(Section::data);
  const TrainedTokenizer trained =
      train_deck_tokenizer(sample_rules(config), communicator, [&](const std::string& line) { opening.print(line); });
  opening.start_directory();
  opening.on_root([&](RunDirectory& directory) { write_tokenizer_files(trained, directory.path()); });
  opening.mark_finished();
  const TokenizerTraining training = config.data.bpe.training(config.data.vocab_size, config.data.add_bos);
  opening.print(fmt::format("{}: {}", config.run.directory(), describe(trained, training)));
  return 0;
}

}  // namespace llmtrain
