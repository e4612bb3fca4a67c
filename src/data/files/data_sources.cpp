#include "data/files/data_sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "corpus/stories.hpp"
#include "data/files/cache_folder.hpp"
#include "data/files/input_kind.hpp"
#include "data/formats/row_format.hpp"
#include "data/stream/mixture.hpp"
#include "parallel/message.hpp"

namespace llmtrain {
namespace {

// The training and validation data of the example corpus are different stories: seed, bytes.
struct StoriesSubset {
  uint64_t seed;
  int64_t bytes;
};
constexpr StoriesSubset training_stories{1, 8'000'000};
constexpr StoriesSubset validation_stories{2, 800'000};

InputFile stories_file(const StoriesSubset& part, const std::string& folder) {
  InputFile input;
  input.path = store_text(folder, "stories", stories_text(part.seed, part.bytes));
  input.name = builtin_stories;
  input.format.separator = story_separator;
  const FileHandle file = FileHandle::open_to_read(input.path);
  input.bytes = file.size();
  input.modified = file.modified();
  return input;
}

void refuse_repeated(const InputSets& sets) {
  std::set<std::string> seen;
  for (const std::vector<InputFile>& files : sets.sources) {
    for (const InputFile& file : files) {
      std::error_code ignored;
      const std::filesystem::path real = std::filesystem::canonical(file.path, ignored);
      if (seen.insert(ignored ? file.path : real.string()).second) continue;
      throw UserError(ExitCode::deck, file.path + ": it is in two sources; name each file once");
    }
  }
}

void put_files(const std::vector<InputFile>& files, Message& message) {
  std::vector<int64_t> numbers = {static_cast<int64_t>(files.size())};
  for (const InputFile& file : files) {
    numbers.insert(numbers.end(), {static_cast<int64_t>(file.kind), file.bytes, file.modified, file.text_begin,
                                   static_cast<int64_t>(file.compression), file.by_content ? 1 : 0,
                                   file.format.row_limit, static_cast<int64_t>(file.table)});
  }
  message.put(numbers);
  for (const InputFile& file : files) {
    for (const std::string* text :
         {&file.path, &file.name, &file.format.separator, &file.format.column, &file.format.row_format}) {
      message.put(*text);
    }
    for (const auto* names : {&file.format.columns, &file.columns.read, &file.columns.values}) {
      message.put(joined(*names, "\n"));
    }
  }
}

std::vector<InputFile> take_files(Message& message) {
  std::vector<int64_t> numbers;
  message.take(numbers);
  std::vector<InputFile> files(static_cast<size_t>(numbers[0]));
  for (size_t f = 0; f < files.size(); ++f) {
    InputFile& file = files[f];
    const int64_t* number = numbers.data() + 1 + 8 * f;
    file.kind = static_cast<InputKind>(number[0]);
    file.bytes = number[1];
    file.modified = number[2];
    file.text_begin = number[3];
    file.compression = static_cast<Compression>(number[4]);
    file.by_content = number[5] != 0;
    file.format.row_limit = number[6];
    file.table = static_cast<TableKind>(number[7]);
    for (std::string* text :
         {&file.path, &file.name, &file.format.separator, &file.format.column, &file.format.row_format}) {
      message.take(*text);
    }
    for (auto* names : {&file.format.columns, &file.columns.read, &file.columns.values}) {
      std::string columns;
      message.take(columns);
      for (size_t at = 0; at < columns.size();) {
        const size_t end = std::min(columns.find('\n', at), columns.size());
        names->push_back(columns.substr(at, end - at));
        at = end + 1;
      }
    }
  }
  return files;
}

}  // namespace

WeightedPattern split_weight(const std::string& entry) {
  const size_t colon = entry.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == entry.size()) return {entry};
  const std::string_view text = std::string_view(entry).substr(colon + 1);
  const bool numeric = text.find_first_not_of("0123456789.+-eE") == std::string_view::npos;
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  if (!numeric || error != std::errc{} || end != text.data() + text.size()) return {entry};
  if (!(weight > 0) || !std::isfinite(weight)) {
    throw UserError(ExitCode::deck, entry + ": the weight after the colon must be above 0");
  }
  return {entry.substr(0, colon), weight};
}

std::vector<WeightedPattern> split_weights(const std::vector<std::string>& entries) {
  std::vector<WeightedPattern> patterns;
  for (const std::string& entry : entries) {
    patterns.push_back(split_weight(entry));
    if ((patterns.back().weight > 0) != (patterns.front().weight > 0)) {
      throw UserError(
          ExitCode::deck,
          fmt::format("{} has {} weight and {} has {}; give a weight to each entry, or to none", entries.front(),
                      patterns.front().weight > 0 ? "a" : "no", entry, patterns.back().weight > 0 ? "one" : "none"));
    }
  }
  if (patterns.size() > Mixture::max_sources && patterns.front().weight > 0) {
    throw UserError(ExitCode::deck,
                    fmt::format("at most {} sources can have weights; join some of them", Mixture::max_sources));
  }
  return patterns;
}

bool names_built_in(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (!pattern.starts_with("builtin:") || pattern == builtin_stories) continue;
    throw UserError(ExitCode::deck,
                    fmt::format("{}: no such corpus; the built-in one is {}", pattern, builtin_stories));
  }
  const auto count = std::ranges::count(patterns, builtin_stories);
  if (count > 0 && patterns.size() > 1) {
    throw UserError(ExitCode::deck,
                    fmt::format("{} cannot be combined; to mix it with files or repeat it, write it to a file "
                                "with `llmtool corpus stories`",
                                builtin_stories));
  }
  return count > 0;
}

std::vector<InputFile> InputSets::all() const {
  std::vector<InputFile> files;
  for (const std::vector<InputFile>& source : sources) files.insert(files.end(), source.begin(), source.end());
  files.insert(files.end(), validation.begin(), validation.end());
  return files;
}

std::vector<InputFile*> InputSets::pointers() {
  std::vector<InputFile*> files;
  for (std::vector<InputFile>& source : sources) {
    for (InputFile& file : source) files.push_back(&file);
  }
  for (InputFile& file : validation) files.push_back(&file);
  return files;
}

InputSets find_input_sets(const SampleRules& config, const std::string& folder) {
  const TextFormat format = config.training_format();
  InputSets sets;
  if (names_built_in(config.train)) {
    sets.sources = {{stories_file(training_stories, folder)}};
    sets.weights = {1};
  } else {
    std::vector<std::string> unweighted;
    for (const WeightedPattern& entry : split_weights(config.train)) {
      if (entry.weight == 0) {
        unweighted.push_back(entry.pattern);
      } else {
        sets.sources.push_back(find_input_files({entry.pattern}, format));
        sets.weights.push_back(entry.weight);
      }
    }
    if (!unweighted.empty()) {
      sets.sources = {find_input_files(unweighted, format)};
      sets.weights = {1};
    }
  }
  if (names_built_in(config.validation)) {
    sets.validation = {stories_file(validation_stories, folder)};
  } else {
    sets.validation = find_input_files(config.validation, config.text_format());
  }
  if (sets.sources.empty()) throw UserError(ExitCode::deck, "data.train: no file is named; name at least one");
  refuse_repeated(sets);
  check_kinds(sets, config.use);
  check_infilling(sets, config.fim_rate);
  return sets;
}

void share_input_sets(InputSets& sets, Communicator& communicator) {
  Message mine;
  mine.put(sets.weights);
  put_files(sets.validation, mine);
  for (const std::vector<InputFile>& files : sets.sources) put_files(files, mine);
  std::string bytes = mine.bytes();
  communicator.broadcast(bytes);
  Message theirs(std::move(bytes));
  sets = {};
  theirs.take(sets.weights);
  sets.validation = take_files(theirs);
  for (size_t s = 0; s < sets.weights.size(); ++s) sets.sources.push_back(take_files(theirs));
}

void check_use(const TokenFileInfo& info, DataUse use) {
  if (use == DataUse::labels) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: run.task = classify reads rows with labels, no token files: name the files of the "
                                "rows",
                                info.path));
  }
  const std::string why = refused_use(use, info.group, info.group_column());
  if (!why.empty()) throw UserError(ExitCode::bad_content, fmt::format("{}: its documents: {}", info.path, why));
}

void check_difficulties(const InputFile& file) {
  const std::string column = named_column(file.format.columns, difficulty_column);
  const bool is_text = file.kind == InputKind::text, has_column = !is_text && file.kind != InputKind::token_rows;
  if (column.empty() || has_column) return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: it is {}, which has no column {} with the difficulty: give rows of JSON with a text "
                              "or a conversation and this column, or choose another curriculum.difficulty",
                              file.path, is_text ? "a text" : "rows of input_ids", printable(column)));
}

void check_difficulties(const InputFile& file, const TokenFileInfo& info) {
  const std::string column = named_column(file.format.columns, difficulty_column);
  if (column.empty() || info.has_difficulties()) return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: it has no difficulties, which curriculum.difficulty = column:{} needs: make it "
                              "again with `llmtool prepare --columns difficulty:{}`",
                              file.path, column, column));
}

void check_infilling(const InputSets& sets, double rate) {
  for (const InputFile& file : rate > 0 ? sets.all() : std::vector<InputFile>()) {
    if (file.kind == InputKind::text || file.kind == InputKind::text_rows) continue;
    throw UserError(ExitCode::deck,
                    fmt::format("{}: data.fim_rate cuts texts, and it has {}", file.path,
                                file.kind == InputKind::instruction_rows
                                    ? "conversations: remove data.fim_rate, or name the column of a text with "
                                      "data.format = text"
                                    : "token ids: remove data.fim_rate, or make them again from the text with "
                                      "`llmtool prepare --fim-rate`"));
  }
}

void check_kinds(const InputSets& sets, DataUse use) {
  const std::vector<InputFile> all = sets.all();
  std::vector<InputFile> encoded;
  for (const InputFile& file : all) {
    check_difficulties(file);
    if (file.kind == InputKind::tokens) continue;
    encoded.push_back(file);
    if (file.kind == InputKind::instruction_rows) continue;  // the format of the first rows was checked
    const std::string why = refused_use(use, 1, "");
    if (!why.empty()) throw UserError(ExitCode::bad_content, fmt::format("{}: its documents: {}", file.path, why));
  }
  common_preference_format(encoded);
  const auto rows = std::ranges::find_if(all, [](const InputFile& file) { return file.kind == InputKind::token_rows; });
  const auto text = std::ranges::find_if(all, [](const InputFile& file) { return is_encoded(file.kind); });
  if (rows != all.end() && text != all.end()) {
    throw UserError(ExitCode::deck, text->path + " and " + rows->path +
                                        ": text and rows of input_ids cannot be mixed, since the ids need not "
                                        "come from the text's tokenizer");
  }
}

}  // namespace llmtrain
