#include "data/dataset.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "data/cache_folder.hpp"
#include "data/file_digest.hpp"
#include "data/text_source.hpp"
#include "data/token_format.hpp"
#include "data/tokenize.hpp"
#include "parallel/runtime.hpp"
#include "text/stories.hpp"
#include "text/tokenizer_files.hpp"

namespace llmtrain {
namespace {

/// The files of data.train and of data.validation.
struct InputSets {
  std::vector<InputFile> train;
  std::vector<InputFile> validation;
};

// The example corpus as training and as validation data are different stories: seed, bytes.
struct StoriesPart {
  uint64_t seed;
  int64_t bytes;
};
constexpr StoriesPart training_stories{1, 8'000'000};
constexpr StoriesPart validation_stories{2, 800'000};

/// Whether this is the example corpus, which stands alone.
bool names_built_in(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (!pattern.starts_with("builtin:") || pattern == builtin_stories) continue;
    throw UserError(ExitCode::deck,
                    fmt::format("{}: there is no such corpus; the built-in one is {}", pattern, builtin_stories));
  }
  const auto count = std::count(patterns.begin(), patterns.end(), builtin_stories);
  if (count > 0 && patterns.size() > 1) {
    throw UserError(ExitCode::deck,
                    fmt::format("{} stands alone; to mix it with files or repeat it, write it to a file "
                                "with `llmtool corpus stories`",
                                builtin_stories));
  }
  return count > 0;
}

std::vector<InputFile> find_set(const std::vector<std::string>& patterns, const std::string& separator,
                                const StoriesPart& part, const std::string& folder) {
  if (!names_built_in(patterns)) return find_input_files(patterns, separator);
  InputFile input;
  input.path = store_text(folder, "stories", stories_text(part.seed, part.bytes));
  input.name = builtin_stories;
  input.separator = story_separator;
  const FileHandle file = FileHandle::open_to_read(input.path);
  input.bytes = file.size();
  input.modified = file.modified();
  return {input};
}

void check_kinds(const InputSets& sets) {
  std::vector<InputFile> all = sets.train;
  all.insert(all.end(), sets.validation.begin(), sets.validation.end());
  for (const InputFile& file : all) {
    if (file.kind != all.front().kind) {
      throw UserError(ExitCode::deck, all.front().path + " and " + file.path +
                                          ": text, rows (.jsonl) and token files (.h5) cannot be mixed; make token "
                                          "files of all with `llmtool prepare`");
    }
  }
}

/// Rank 0 looks, all others are told: folders of a network may look different elsewhere.
void share(std::vector<InputFile>& files, Communicator& communicator) {
  Message mine;
  std::vector<int64_t> numbers;
  for (const InputFile& file : files) {
    for (const std::string* text : {&file.path, &file.name, &file.separator}) mine.put(*text);
    numbers.insert(numbers.end(), {static_cast<int64_t>(file.kind), file.bytes, file.modified, file.text_begin});
  }
  std::string texts = mine.bytes();
  int64_t count = static_cast<int64_t>(files.size());
  communicator.broadcast(&count, sizeof(count));
  communicator.broadcast(texts);
  files.resize(static_cast<size_t>(count));
  numbers.resize(files.size() * 4);
  communicator.broadcast(numbers.data(), static_cast<int64_t>(numbers.size() * sizeof(int64_t)));
  Message theirs(std::move(texts));
  for (size_t f = 0; f < files.size(); ++f) {
    for (std::string* text : {&files[f].path, &files[f].name, &files[f].separator}) theirs.take(*text);
    files[f].kind = static_cast<InputKind>(numbers[4 * f]);
    files[f].bytes = numbers[4 * f + 1];
    files[f].modified = numbers[4 * f + 2];
    files[f].text_begin = numbers[4 * f + 3];
  }
}

/// The part of a scan that belongs to files [first, first + count).
SourceScan part_of(const SourceScan& scan, size_t first, size_t count) {
  SourceScan part;
  const auto slice = [&](const auto& from, auto& to) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(first);
    to.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  slice(scan.digests, part.digests);
  slice(scan.characters, part.characters);
  slice(scan.skipped, part.skipped);
  for (const DocumentPlace& place : scan.documents) {
    if (place.file >= first && place.file < first + count) {
      part.documents.push_back({place.file - first, place.begin, place.end});
    }
  }
  return part;
}

/// The tokenizer that the deck names by its files.
std::shared_ptr<const Tokenizer> open_tokenizer(const DataConfig& config) {
  std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(config.tokenizer, config.eos_token);
  require_eos(*tokenizer, config.tokenizer);
  if (config.add_bos && tokenizer->bos_id() < 0) {
    throw UserError(ExitCode::bad_content,
                    config.tokenizer + ": it has no token that begins a text: set data.add_bos = false");
  }
  return tokenizer;
}

class DatasetOpener {
 public:
  DatasetOpener(const DataConfig& config, const BatchConfig& batch, Communicator& communicator,
                const ProgressReport& report)
      : config_(config), batch_(batch), communicator_(communicator), report_([&communicator, report](const auto& line) {
          if (report && communicator.rank() == 0) report(line);
        }) {}

  Dataset open() {
    find_inputs();
    if (sets_.train.front().kind == InputKind::tokens) {
      open_token_files();
    } else {
      open_sources();
    }
    if (data_.validation == nullptr && config_.validation.empty() && config_.validation_fraction > 0) {
      raise_together(communicator_, [&] {
        SplitTokens split = split_tokens(data_.train, config_.validation_fraction);
        data_.train = std::move(split.train);
        data_.validation = std::move(split.validation);
      });
    }
    data_.optimum = known_optimum();
    return std::move(data_);
  }

 private:
  void find_inputs() {
    raise_together(communicator_, [&] {
      if (communicator_.rank() != 0) return;
      folder_ = open_cache_folder(config_.cache.empty() ? default_cache_folder() : config_.cache);
      sets_.train = find_set(config_.train, config_.document_separator, training_stories, folder_);
      sets_.validation = find_set(config_.validation, config_.document_separator, validation_stories, folder_);
      if (sets_.train.empty()) throw UserError(ExitCode::deck, "data.train: names no file");
      check_kinds(sets_);
    });
    communicator_.broadcast(folder_);
    share(sets_.train, communicator_);
    share(sets_.validation, communicator_);
  }

  void open_token_files() {
    raise_together(communicator_, [&] {
      const auto open_set = [](const std::vector<InputFile>& files) {
        std::vector<std::shared_ptr<const TokenFile>> opened;
        opened.reserve(files.size());
        for (const InputFile& file : files) opened.push_back(open_token_file(file.path));
        return concatenate_tokens(std::move(opened));
      };
      data_.train = open_set(sets_.train);
      const TokenFileInfo& info = data_.train->info();
      data_.vocabulary_size = info.vocabulary_size;
      if (!sets_.validation.empty()) {
        data_.validation = open_set(sets_.validation);
        concatenate_tokens({data_.train, data_.validation});  // refuses another tokenizer
      }
      if (!info.tokenizer.empty()) data_.tokenizer = stored_tokenizer(info);
    });
  }

  static std::shared_ptr<const Tokenizer> stored_tokenizer(const TokenFileInfo& info) {
    try {
      std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer_from(info.tokenizer);
      if (tokenizer->vocabulary_size() != info.vocabulary_size || tokenizer->eos_id() != info.eos_id) {
        throw UserError(ExitCode::bad_content, "its tokenizer and its vocabulary_size or eos_id disagree");
      }
      return tokenizer;
    } catch (const UserError& error) {
      throw UserError(error.code(), info.path + ": " + error.what());
    }
  }

  void open_sources() {
    std::vector<InputFile> all = sets_.train;
    all.insert(all.end(), sets_.validation.begin(), sets_.validation.end());
    if (sets_.train.front().kind != InputKind::rows) share_tokenizer();
    const SourceScan scan = scan_sources(all, communicator_, percent_report(report_, "reading"));
    raise_together(communicator_, [&] { choose_tokenizer(scan); });
    data_.train = open_set(sets_.train, part_of(scan, 0, sets_.train.size()));
    data_.vocabulary_size = data_.train->info().vocabulary_size;
    if (!sets_.validation.empty()) {
      data_.validation = open_set(sets_.validation, part_of(scan, sets_.train.size(), sets_.validation.size()));
      data_.vocabulary_size = std::max(data_.vocabulary_size, data_.validation->info().vocabulary_size);
    }
  }

  void choose_tokenizer(const SourceScan& scan) {
    if (sets_.train.front().kind == InputKind::rows) {
      if (!config_.add_bos) return;
      throw UserError(ExitCode::deck, "data.add_bos: rows of input_ids are taken as they are; set it to false");
    }
    if (config_.tokenizer == "bytes") {
      data_.tokenizer = make_byte_tokenizer(config_.add_bos);
    } else if (config_.tokenizer == "char") {
      data_.tokenizer = make_char_tokenizer(scan.code_points, config_.add_bos);
    } else {
      data_.tokenizer = tokenizer_;
    }
  }

  /// Rank 0 reads the files, all others are told.
  void share_tokenizer() {
    if (!is_tokenizer_path(config_.tokenizer)) return;
    std::string serialized;
    raise_together(communicator_, [&] {
      if (communicator_.rank() != 0) return;
      tokenizer_ = open_tokenizer(config_);
      serialized = tokenizer_->serialized();
    });
    communicator_.broadcast(serialized);
    raise_together(communicator_, [&] {
      if (communicator_.rank() != 0) tokenizer_ = make_tokenizer_from(serialized);
    });
  }

  std::shared_ptr<const TokenFile> open_set(const std::vector<InputFile>& files, SourceScan scan) {
    TokenizeRequest request;
    request.files = files;
    for (InputFile& file : request.files) file.name = file.name.substr(file.name.rfind('/') + 1);
    request.scan = std::move(scan);
    request.tokenizer = data_.tokenizer.get();
    request.add_bos = config_.add_bos;
    request.with_digest = true;
    request.command = "llmtrain, " + settings_of(request);
    request.output = folder_ + "/tokens-" + key_of(request) + ".h5";

    const StoredFile stored = check_digest(request.output, communicator_);
    if (stored == StoredFile::damaged) report_(request.output + ": the cached token file is damaged: made again");
    if (stored != StoredFile::whole) make(request);
    std::shared_ptr<const TokenFile> opened;
    raise_together(communicator_, [&] { opened = open_token_file(request.output); });
    return opened;
  }

  void make(const TokenizeRequest& request) {
    int64_t bytes = 0, skipped = 0;
    for (size_t f = 0; f < request.files.size(); ++f) {
      bytes += request.files[f].bytes;
      skipped += request.scan.skipped[f];
    }
    const std::string what = data_.tokenizer ? " of text, tokenizer " + data_.tokenizer->kind() : " of token rows";
    report_(fmt::format("tokenizing {:.1f} MB{}", static_cast<double>(bytes) / 1e6, what));
    tokenize_to_file(request, communicator_, report_);
    if (skipped > 0) report_(fmt::format("{} empty documents were skipped", skipped));
    for (size_t f = 0; f < request.files.size(); ++f) {
      const auto in_file = [&](const DocumentPlace& place) { return place.file == f; };
      if (request.files[f].separator.empty() || request.files[f].kind != InputKind::text) continue;
      if (std::count_if(request.scan.documents.begin(), request.scan.documents.end(), in_file) == 1) {
        report_(request.files[f].path + ": data.document_separator does not occur: the file is one document");
      }
    }
    report_("tokens are kept in " + request.output);
  }

  std::string settings_of(const TokenizeRequest& request) const {
    if (request.tokenizer == nullptr) return "rows of input_ids";
    return fmt::format("tokenizer={} document_separator={} add_bos={}", request.tokenizer->kind(),
                       nlohmann::json(request.files.front().separator).dump(), request.add_bos);
  }

  /// Everything that a token file is a function of.
  static std::string key_of(const TokenizeRequest& request) {
    std::string text = fmt::format("format {}, {}\n", token_format::version, request.command);
    if (request.tokenizer != nullptr) text += request.tokenizer->serialized();
    for (size_t f = 0; f < request.files.size(); ++f) {
      const InputFile& file = request.files[f];
      text += fmt::format("\n{} {} {} {}", file.name, file.bytes, hex(request.scan.digests[f]),
                          nlohmann::json(file.separator).dump());
    }
    return hex(digest_of(text.data(), text.size()));
  }

  /// Only where a sample is a whole story, as the entropy is that of whole stories.
  double known_optimum() const {
    const auto built_in = [](const std::vector<InputFile>& files) { return files.front().name == builtin_stories; };
    const bool stories = built_in(sets_.train) && (sets_.validation.empty() || built_in(sets_.validation));
    const int64_t inputs = longest_story + (config_.add_bos ? 1 : 0);
    if (!stories || config_.packing != DataConfig::Packing::none || batch_.sequence_length < inputs) return 0;
    const StoriesOptimum optimum = stories_optimum();
    // With BOS every character is a target, else all but the first; the end symbol is always.
    return config_.add_bos ? optimum.nats_per_story / (optimum.characters_per_story + 1) : optimum.nats_per_character;
  }

  const DataConfig& config_;
  const BatchConfig& batch_;
  Communicator& communicator_;
  ProgressReport report_;
  std::string folder_;
  InputSets sets_;
  std::shared_ptr<const Tokenizer> tokenizer_;  // of files
  Dataset data_;
};

}  // namespace

Dataset open_dataset(const DataConfig& config, const BatchConfig& batch, Communicator& communicator,
                     const ProgressReport& report) {
  return DatasetOpener(config, batch, communicator, report).open();
}

int64_t check_data_files(const DataConfig& config, const DataErrorReport& report) {
  const auto guarded = [&](const char* key, const auto& work) {
    try {
      work();
      return true;
    } catch (const UserError& error) {
      report(key, error);
      return false;
    }
  };
  InputSets sets;
  std::vector<std::shared_ptr<const TokenFile>> opened;
  bool sound = true;
  const auto examine = [&](const char* key, const std::vector<std::string>& patterns, std::vector<InputFile>& files) {
    bool built_in = false;
    bool found = guarded(key, [&] { built_in = names_built_in(patterns); });
    if (!found || built_in) {
      sound = sound && found;
      return;
    }
    for (const std::string& pattern : patterns) {  // each, to report all that are missing
      found = guarded(key, [&] { find_input_files({pattern}, config.document_separator); }) && found;
    }
    sound = found && guarded(key, [&] { files = find_input_files(patterns, config.document_separator); }) && sound;
    for (const InputFile& file : files) {
      if (file.kind != InputKind::tokens) continue;
      sound = guarded(key, [&] { opened.push_back(open_token_file(file.path)); }) && sound;
    }
  };
  examine("data.train", config.train, sets.train);
  examine("data.validation", config.validation, sets.validation);
  std::shared_ptr<const Tokenizer> tokenizer;
  const bool has_path = is_tokenizer_path(config.tokenizer) && opened.empty();
  if (has_path) sound = guarded("data.tokenizer", [&] { tokenizer = open_tokenizer(config); }) && sound;
  if (!sound) return 0;
  if (!guarded("data.train", [&] { check_kinds(sets); })) return 0;
  int64_t vocabulary = 0;
  if (!opened.empty()) {
    guarded("data.train", [&] { vocabulary = concatenate_tokens(std::move(opened))->info().vocabulary_size; });
    return vocabulary;
  }
  const bool text = sets.train.empty() || sets.train.front().kind == InputKind::text;
  if (text && tokenizer != nullptr) return tokenizer->vocabulary_size();
  return text && config.tokenizer == "bytes" ? make_byte_tokenizer(config.add_bos)->vocabulary_size() : 0;
}

}  // namespace llmtrain
