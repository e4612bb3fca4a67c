#include "data/tokenize/trained_tokenizer.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/whole_file.hpp"
#include "data/files/cache_folder.hpp"
#include "data/files/file_digest.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
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
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    std::error_code error;
    std::filesystem::create_directories(own, error);
    if (error) fail_to_create(own, "cannot create it", error.value());
    write_tokenizer_files(trained, own);
  });
  const std::string digest = file_digest(own + "/tokenizer.json", communicator);
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() == 0) write_digest(own + "/tokenizer.json", digest);
  });
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
