// Checks of the deck's data before a run.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "data/dataset.hpp"
#include "data/files/data_sources.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/text_source.hpp"
#include "data/stream/embedding_rows.hpp"
#include "data/tokenize/infilling.hpp"
#include "data/tokenize/open_tokenizer.hpp"

namespace llmtrain {

DataFacts check_data_files(const SampleRules& config, const DataErrorReport& report) {
  const auto guarded = [&](const char* key, const auto& work) {
    try {
      work();
      return true;
    } catch (const UserError& error) {
      const std::string_view what = error.what(), named = key;
      const bool names_key = what.starts_with(named) && what.substr(named.size()).starts_with(": ");
      report(key, names_key ? UserError(error.code(), std::string(what.substr(named.size() + 2))) : error);
      return false;
    }
  };
  InputSets sets;
  std::vector<std::shared_ptr<const TokenFile>> opened;
  const auto examine = [&](const char* key, const std::vector<std::string>& patterns, const TextFormat& format) {
    std::vector<InputFile> files;
    bool sound = true;
    for (const std::string& pattern : patterns) {  // one by one, to report all that are missing
      sound = guarded(key, [&] { find_input_files({pattern}, format); }) && sound;
    }
    if (!sound || !guarded(key, [&] { files = find_input_files(patterns, format); })) return false;
    for (const InputFile& file : files) {
      if (file.kind != InputKind::tokens) continue;
      sound = guarded(key,
                      [&] {
                        opened.push_back(open_token_file(file.path));
                        check_use(opened.back()->info(), config.use);
                        check_difficulties(file, opened.back()->info());
                      }) &&
              sound;
    }
    sets.sources.push_back(std::move(files));
    return sound;
  };
  bool built_in = false, sound = true;
  std::vector<std::string> train;
  sound = guarded("data.train", [&] {
    built_in = names_built_in(config.train);
    for (const WeightedPattern& entry : split_weights(config.train)) train.push_back(entry.pattern);
  });
  if (sound && !built_in) sound = examine("data.train", train, config.training_format());
  bool built_in_validation = false;
  const bool known = guarded("data.validation", [&] { built_in_validation = names_built_in(config.validation); });
  sound =
      known && (built_in_validation || examine("data.validation", config.validation, config.text_format())) && sound;
  const std::vector<InputFile> files = sets.all();
  const bool text =
      files.empty() || std::ranges::any_of(files, [](const InputFile& file) { return is_encoded(file.kind); });
  const bool named = names_tokenizer_of_ids(config) && !text;
  std::shared_ptr<const Tokenizer> tokenizer;
  if (config.has_tokenizer_files() && (named || opened.empty())) {
    sound =
        guarded("data.tokenizer", [&] { tokenizer = tokenizer_of(config, config.tokenizer_path(), text); }) && sound;
  } else if (config.tokenizer == "bytes") {
    tokenizer = make_byte_tokenizer(config.add_bos);
  }
  if (text && !config.has_tokenizer_files() && config.tokenizer != "bpe") {
    sound = guarded("data.add_tokens", [&] { refuse_added_tokens(config); }) && sound;
  }
  if (!sound || !guarded("data.train", [&] { check_kinds(sets, config.use); })) return {};
  sound = guarded("data.fim_rate", [&] { check_infilling(sets, config.fim_rate); });
  if (text && tokenizer != nullptr) {
    sound = guarded("data.fim_tokens", [&] { make_infilling(config, *tokenizer); }) && sound;
  }
  if (named) {
    const TokenFileInfo* stored = info_with_tokenizer(opened);
    const bool same = guarded("data.tokenizer", [&] {
      if (config.tokenizer == "bpe") throw UserError(ExitCode::deck, bpe_without_text);
      if (stored != nullptr) check_same_tokenizer(config, *tokenizer, *stored_tokenizer(*stored, config), stored->path);
    });
    sound = same && sound;
  }
  if (text && tokenizer != nullptr) {
    sound = guarded("data.tokenizer", [&] { check_document_tokens(*tokenizer, config); }) && sound;
  }
  if (!sound) return {};
  DataFacts facts;
  if (!opened.empty()) {
    guarded("data.train", [&] {
      const TokenFileInfo info = concatenate_tokens(std::move(opened))->info();
      facts.vocabulary_size = info.vocabulary_size;
      if (!info.tokenizer.empty() && exceeds_rows(config, info.vocabulary_size))
        tokenizer = stored_tokenizer(info, config);
    });
  } else if (text || named) {
    facts.vocabulary_size = tokenizer != nullptr ? tokenizer->vocabulary_size() : 0;
  } else {
    tokenizer = nullptr;
  }
  facts.note = missing_rows_warning(tokenizer.get(), config);
  facts.vocabulary_size = needed_rows(config, facts.vocabulary_size);
  return facts;
}

}  // namespace llmtrain
