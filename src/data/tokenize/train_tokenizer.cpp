#include "data/tokenize/train_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/whole_file.hpp"
#include "core/stop_request.hpp"
#include "data/files/cache_folder.hpp"
#include "data/files/file_digest.hpp"
#include "data/tokenize/shared_work.hpp"
#include "parallel/job/launcher.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/message.hpp"
#include "text/hf_folder/json_out.hpp"

namespace llmtrain {
namespace {

const SplitPattern& find_split(const std::string& name) {
  const std::vector<std::string_view> names = trainable_splits();
  if (std::ranges::find(names, name) == names.end()) {
    throw UserError(ExitCode::command_line, fmt::format("the split pattern {} is unknown; it must be one of {}{}", name,
                                                        joined(names, ", "), did_you_mean(name, names)));
  }
  return *SplitPattern::find_name(name);
}

BpeTrainingOptions options_of(const TokenizerTraining& training) {
  return {.vocabulary_size = training.vocabulary_size,
          .min_frequency = training.min_frequency,
          .special_tokens = training.special_tokens,
          .ties = training.ties};
}

void check(const std::vector<InputFile>& files, const TokenizerTraining& training) {
  find_split(training.split);
  check_bpe_options(options_of(training));
  if (files.empty()) {
    throw UserError(ExitCode::deck, "there is no text to train a tokenizer on; token files already have theirs");
  }
  for (const InputFile& file : files) {
    if (file.kind == InputKind::instruction_rows) {
      throw UserError(ExitCode::deck, file.path +
                                          ": data.tokenizer = bpe is trained on text, not on conversations; name "
                                          "the tokenizer of the model");
    }
    if (!is_encoded(file.kind)) {
      throw UserError(ExitCode::bad_content, file.path + ": a tokenizer is trained on text, but this file has none");
    }
  }
  for (const std::string* token : {&training.eos, &training.bos}) {
    const auto& all = training.special_tokens;
    if (!token->empty() && std::ranges::find(all, *token) == all.end()) {
      throw UserError(ExitCode::command_line, fmt::format("{} is not one of the special tokens", *token));
    }
  }
}

/// Rank 0 works on a separate thread; the ranks synchronize every half second, so that none waits long inside a
/// collective. `stop` becomes the code of a stop request that any rank received.
template <class Work>
void work_on_root(Communicator& communicator, const Work& work, const std::function<void()>& each_round,
                  std::atomic<int64_t>& stop) {
  std::future<void> result;
  if (communicator.rank() == 0) result = std::async(std::launch::async, work);
  for (int64_t busy[] = {1, 0}; busy[0] != 0;) {
    busy[0] = result.valid() && result.wait_for(std::chrono::milliseconds(500)) != std::future_status::ready ? 1 : 0;
    if (communicator.rank() == 0) each_round();
    busy[1] = look_for_stop();
    communicator.maximum(busy);
    if (busy[1] != 0) stop = busy[1];
  }
  throw_on_all_ranks(communicator, [&] {
    if (result.valid()) result.get();
  });
}

void share(TrainedTokenizer& trained, Communicator& communicator) {
  communicator.broadcast(trained.tokenizer_json);
  communicator.broadcast(trained.tokenizer_config_json);
  int64_t numbers[] = {trained.tokens, trained.merges, trained.distinct_words, trained.words};
  communicator.broadcast(numbers, sizeof(numbers));
  trained.tokens = numbers[0];
  trained.merges = numbers[1];
  trained.distinct_words = numbers[2];
  trained.words = numbers[3];
}

}  // namespace

TrainedTokenizer train_tokenizer(const std::vector<InputFile>& files, const SourceScan& scan,
                                 const TokenizerTraining& training, Communicator& communicator,
                                 const ProgressReport& report) {
  throw_on_all_ranks(communicator, [&] { check(files, training); });
  const SplitPattern& split = find_split(training.split);
  const ProgressReport root_report = [&](const std::string& line) {
    if (report && communicator.rank() == 0) report(line);
  };
  WordCounts words;
  count_words(files, scan, split, training.unit, communicator, percent_report(root_report, "counting words"), words);
  TrainedTokenizer trained;
  trained.distinct_words = static_cast<int64_t>(words.size());
  trained.words = static_cast<int64_t>(words.total());
  std::atomic<double> done{0};
  std::atomic<int64_t> stop{0};
  const auto progress = percent_report(root_report, "merging pairs");
  work_on_root(
      communicator,
      [&] {
        BpeTrainingOptions options = options_of(training);
        options.threads = worker_threads(communicator);
        options.progress = [&](double share) {
          done = share;
          if (stop != 0) cancel_work(stop, while_reading);
        };
        const BpeVocabulary vocabulary = train_bpe(words, options);
        trained.tokens = static_cast<int64_t>(vocabulary.tokens.size());
        trained.merges = static_cast<int64_t>(vocabulary.merges.size());
        trained.tokenizer_json = bpe_tokenizer_json(vocabulary, split, training.bos);
        trained.tokenizer_config_json = bpe_tokenizer_config({training.eos, training.bos});
        done = 1;
      },
      [&] { progress(done); }, stop);
  share(trained, communicator);
  return trained;
}

std::vector<std::string_view> trainable_splits() {
  return {"gpt2", "llama3", "qwen2", "qwen3.5", "o200k", "tekken", "dbrx"};
}

namespace {

constexpr int training_version = 1;  // increased when the same text and settings give another tokenizer

/// Everything that determines the tokenizer.
std::string key_of(const std::vector<InputFile>& files, const SourceScan& scan, const TokenizerTraining& training) {
  std::string text =
      fmt::format("bpe {} {} {} {} {} {} {}\n{}", training_version, training.vocabulary_size, training.min_frequency,
                  training.split, static_cast<int>(training.unit), static_cast<int>(training.ties),
                  nlohmann::json(training.special_tokens).dump(), nlohmann::json({training.eos, training.bos}).dump());
  for (size_t f = 0; f < files.size(); ++f) {
    const TextFormat& format = files[f].format;
    text += fmt::format("\n{} {} {}", files[f].bytes, hex(scan.digests[f]),
                        nlohmann::json(files[f].kind == InputKind::text ? format.separator : format.column).dump());
  }
  return hex(digest_of(text.data(), text.size()));
}

}  // namespace

void write_tokenizer_files(const TrainedTokenizer& trained, const std::string& folder) {
  write_whole_file(folder + "/tokenizer_config.json", trained.tokenizer_config_json);
  write_whole_file(folder + "/tokenizer.json", trained.tokenizer_json);
}

std::string open_trained_tokenizer(const std::vector<InputFile>& files, const SourceScan& scan,
                                   const TokenizerTraining& training, const std::string& folder,
                                   Communicator& communicator, const ProgressReport& report) {
  std::string own = folder + "/tokenizer-" + key_of(files, scan, training);
  const StoredFile stored = check_digest(own + "/tokenizer.json", communicator);
  if (stored == StoredFile::whole) return own;
  if (stored == StoredFile::damaged) report(own + ": the cached tokenizer is damaged; training it again");
  throw_on_all_ranks(communicator, [&] { require_writable_cache(folder); });
  const TrainedTokenizer trained = train_tokenizer(files, scan, training, communicator, report);
  on_root(communicator, [&] {
    std::error_code error;
    std::filesystem::create_directories(own, error);
    if (error) fail_to_create(own, "cannot create it", error.value());
    write_tokenizer_files(trained, own);
  });
  const std::string digest = file_digest(own + "/tokenizer.json", communicator);
  on_root(communicator, [&] { write_digest(own + "/tokenizer.json", digest); });
  report(fmt::format("tokenizer: {}; kept in {}", describe(trained, training), own));
  return own;
}

std::string describe(const TrainedTokenizer& trained, const TokenizerTraining& training) {
  std::string text = fmt::format("{} tokens trained on {} words, {} of them distinct", trained.tokens, trained.words,
                                 trained.distinct_words);
  if (trained.tokens < training.vocabulary_size) {
    text += fmt::format(" ({} fewer than requested: no remaining pair occurs {})",
                        training.vocabulary_size - trained.tokens,
                        training.min_frequency > 1 ? fmt::format("{} times", training.min_frequency) : "at all");
  }
  return text;
}

}  // namespace llmtrain
