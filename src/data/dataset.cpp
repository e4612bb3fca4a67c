#include "data/dataset.hpp"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <map>
#include <utility>

#include "core/label_rules.hpp"
#include "corpus/stories.hpp"
#include "data/files/cache_folder.hpp"
#include "data/files/data_sources.hpp"
#include "data/files/file_digest.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "data/files/text_source.hpp"
#include "data/files/unpack.hpp"
#include "data/formats/label_rows.hpp"
#include "data/quality/chat_lint.hpp"
#include "data/stream/embedding_rows.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "data/tokenize/shared_work.hpp"
#include "data/tokenize/token_cache.hpp"
#include "data/tokenize/tokenize_jobs.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

FoundLabels labels_of(const TokenizeJob& job, const InputFile& file, const LabelRules& rules) {
  FoundLabels found;
  const FileHandle handle = open_content(file);
  LineReader lines(handle, file.bytes, job.begin, job.end, file.format.row_limit);
  const RowReader reader(file.format.row_format, file.format.columns, true);
  std::string_view line;
  while (lines.next(line)) {
    if (is_blank(line)) continue;
    try {
      found.add(reader.read_documents(line).labelled.value(), rules);
    } catch (const RowError& error) {
      fail_at_byte(handle, lines.offset() + static_cast<int64_t>(error.byte()), error.reason());
    } catch (const UserError& error) {
      fail_in_row(handle, lines.offset(), error.what());
    }
  }
  return found;
}

/// Returns the labels that occur in rows, the same on every rank: all ranks read a part of the files. Errors name the
/// file and the line of a row. Collective.
std::vector<std::string> labels_of_files(const std::vector<InputFile>& files, const LabelRules& rules,
                                         Communicator& communicator, const ProgressReport& report) {
  TokenizeRequest request;
  request.files = files;
  const std::vector<TokenizeJob> jobs = jobs_of(request);
  FoundLabels mine, all;
  share_work<FoundLabels>(
      communicator, own_items(std::ssize(jobs), communicator),
      [&](int64_t item) {
        const TokenizeJob& job = jobs[static_cast<size_t>(item)];
        return labels_of(job, files[job.file], rules);
      },
      [&](int64_t /*item*/, const FoundLabels& found) { mine.add(found); }, percent_report(report, "reading labels"));
  for (const std::string& bytes : communicator.gather_all(mine.packed())) all.add(FoundLabels::unpacked(bytes));
  std::vector<std::string> names;
  throw_on_all_ranks(communicator, [&] { names = all.names(); });
  return names;
}

class DatasetOpener {
 public:
  DatasetOpener(const SampleRules& config, const BatchConfig& batch, Communicator& communicator,
                const ProgressReport& report, const ChatSource& chat = {})
      : config_(config),
        batch_(batch),
        communicator_(communicator),
        report_([&communicator, report](const auto& line) {
          if (report && communicator.rank() == 0) report(line);
        }),
        chat_(chat) {}

  Dataset open() {
    find_inputs();
    open_token_files();
    prepare_text();
    find_labels();
    name_ids();
    bound_token_files();
    for (size_t s = 0; s < sets_.sources.size(); ++s) {
      data_.sources.push_back({open_source(sets_.sources[s]), sets_.weights[s]});
    }
    if (!sets_.validation.empty()) data_.validation = open_source(sets_.validation);
    join();
    on_root(communicator_, [&] { list_contents(); });
    data_.optimum = known_optimum();
    data_.note = missing_rows_warning(data_.tokenizer.get(), config_);
    return std::move(data_);
  }

  /// Replaces open() for callers that need the tokenizer alone.
  TrainedTokenizer train_tokenizer_only() {
    find_inputs();
    const std::vector<InputFile> files = training_text();
    const SourceScan scan = scan_sources(files, communicator_, percent_report(report_, "reading"));
    return train_tokenizer(files, scan, bpe_training(), communicator_, report_);
  }

 private:
  TokenizerTraining bpe_training() const { return config_.bpe.training(config_.vocab_size, config_.add_bos); }

  /// Data that a tokenizer is trained on: the training data without token files.
  std::vector<InputFile> training_text() const {
    std::vector<InputFile> files;
    for (const std::vector<InputFile>& source : sets_.sources) {
      for (const InputFile& file : source) {
        if (file.kind != InputKind::tokens) files.push_back(file);
      }
    }
    return files;
  }

  void find_inputs() {
    on_root(communicator_, [&] {
      folder_ = open_cache_folder(config_.cache.empty() ? default_cache_folder() : config_.cache);
      sets_ = find_input_sets(config_, folder_);
      report_notes(sets_.all(), report_);
    });
    communicator_.broadcast(folder_);
    share_input_sets(sets_, communicator_);
    unpack_files(sets_.pointers(), folder_, config_.unpacked_limit, communicator_, report_);
  }

  /// Opens the token files of the deck. The tokenizer of the first one that has it is the run's.
  void open_token_files() {
    for (const InputFile& file : sets_.all()) {
      if (file.kind != InputKind::tokens || token_files_.contains(file.path)) continue;
      const auto opened = token_files_[file.path] = open_token_file(file.path, 0, communicator_);
      throw_on_all_ranks(communicator_, [&] {
        check_use(opened->info(), config_.use);
        check_difficulties(file, opened->info());
        if (data_.tokenizer || opened->info().tokenizer.empty()) return;
        data_.tokenizer = stored_tokenizer(opened->info(), config_);
        stored_in_ = file.path;
      });
    }
  }

  /// Reads all text and rows, and chooses the tokenizer.
  void prepare_text() {
    for (const InputFile& file : sets_.all()) {
      if (file.kind != InputKind::tokens) scanned_.push_back(file);
    }
    if (scanned_.empty()) return;
    const bool encoded = is_encoded(scanned_.front().kind);
    if (encoded && config_.has_tokenizer_files()) share_tokenizer(config_.tokenizer_path(), true);
    scan_ = scan_sources(scanned_, communicator_, percent_report(report_, "reading"));
    if (encoded && config_.tokenizer == "bpe") {
      const std::vector<InputFile> files = training_text();
      share_tokenizer(open_trained_tokenizer(files, section_of(scan_, 0, files.size()), bpe_training(), folder_,
                                             communicator_, report_),
                      true);
    }
    throw_on_all_ranks(communicator_, [&] {
      choose_tokenizer();
      if (encoded) check_document_tokens(*data_.tokenizer, config_);
    });
    make_encoder();
  }

  /// Lists the labels of the rows, where the deck does not.
  void find_labels() {
    if (config_.use != DataUse::labels) return;
    if (config_.labels.names.empty() && config_.labels.problem != LabelProblem::regression) {
      config_.labels.names = labels_of_files(scanned_, config_.labels, communicator_, report_);
    }
    data_.labels = config_.labels.names;
  }

  /// Makes the encoder of rows of instruction data, if there are any.
  void make_encoder() {
    if (!has_kind(scanned_, InputKind::instruction_rows)) return;
    throw_on_all_ranks(communicator_, [&] {
      const SampleRules rules = config_.for_conversations();
      if (rules.packing != DataConfig::Packing::wrap && rules.overflow == DataConfig::Overflow::split) {
        throw UserError(ExitCode::deck,
                        "data.overflow: split would begin a sample in the middle of a conversation; choose truncate, "
                        "truncate_left, drop or error");
      }
      encoder_ = std::make_unique<const ChatEncoder>(*data_.tokenizer, chat_.config, chat_.files, training_time);
      if (communicator_.rank() != 0 || config_.use == DataUse::labels) return;
      data_.warnings = lint_first_rows(scanned_, *encoder_);
      if (rules.packing == DataConfig::Packing::wrap && has_conversations(scanned_)) {
        data_.warnings.emplace_back(wrapped_conversations_warning);
      }
    });
    report_(encoder_->has_template() ? "chat template: " + encoder_->template_name()
                                     : "rows are encoded without a chat template");
  }

  /// Uses the tokenizer that the deck names for data with token ids only.
  void name_ids() {
    if (!names_tokenizer_of_ids(config_) || (!scanned_.empty() && is_encoded(scanned_.front().kind))) return;
    if (config_.has_tokenizer_files()) share_tokenizer(config_.tokenizer_path(), false);
    throw_on_all_ranks(communicator_, [&] {
      if (config_.tokenizer == "bpe") throw UserError(ExitCode::deck, bpe_without_text);
      const std::shared_ptr<const Tokenizer> named = make_tokenizer();
      if (data_.tokenizer != nullptr) {
        check_same_tokenizer(config_, *named, *data_.tokenizer, stored_in_);
      } else {
        data_.tokenizer = ids_tokenizer_ = named;
      }
    });
  }

  /// Checks the ids of token files whose vocabulary is larger than the model's.
  void bound_token_files() {
    for (auto& [path, file] : token_files_) {
      file = with_rows(file, data_.tokenizer.get(), config_, communicator_, report_);
    }
  }

  /// Consecutive files of one kind become one token file, opened or made; all files of a source are consecutive.
  std::shared_ptr<const TokenFile> open_source(const std::vector<InputFile>& files) {
    const TokenCache cache(config_, batch_.sequence_length, folder_, data_.tokenizer, encoder_.get(), communicator_,
                           report_);
    std::vector<std::shared_ptr<const TokenFile>> opened;
    for (size_t f = 0; f < files.size();) {
      if (files[f].kind == InputKind::tokens) {
        opened.push_back(token_files_.at(files[f++].path));
        continue;
      }
      size_t last = f;
      while (last < files.size() && files[last].kind != InputKind::tokens) ++last;
      opened.push_back(cache.open(
          {files.begin() + static_cast<std::ptrdiff_t>(f), files.begin() + static_cast<std::ptrdiff_t>(last)},
          section_of(scan_, scanned_before_, last - f)));
      scanned_before_ += last - f;
      f = last;
    }
    return concatenate_tokens(std::move(opened));
  }

  /// Separates the validation data, and checks that one tokenizer made all data. Errors are the same on every rank.
  void join() {
    std::vector<std::shared_ptr<const TokenFile>> train, validation;
    if (data_.validation) data_.validation = long_documents(data_.validation);
    for (WeightedTokens& source : data_.sources) {
      source.tokens = long_documents(source.tokens);
      if (config_.validation.empty() && config_.validation_fraction > 0) {
        SplitTokens split = split_tokens(source.tokens, config_.validation_fraction);
        source.tokens = std::move(split.train);
        if (split.validation) validation.push_back(std::move(split.validation));
      }
      train.push_back(source.tokens);
    }
    data_.train = concatenate_tokens(std::move(train));
    if (!validation.empty()) data_.validation = concatenate_tokens(std::move(validation));
    data_.vocabulary_size = data_.train->info().vocabulary_size;
    if (data_.validation) {
      data_.vocabulary_size = concatenate_tokens({data_.train, data_.validation})->info().vocabulary_size;
    }
    if (!config_.add_tokens.empty() && data_.tokenizer != nullptr) {
      data_.vocabulary_size = std::max(data_.vocabulary_size, needed_rows(config_, data_.tokenizer->vocabulary_size()));
    }
    if (ids_tokenizer_ != nullptr) {
      check_ids(config_, *ids_tokenizer_, data_.vocabulary_size);
      data_.vocabulary_size = needed_rows(config_, ids_tokenizer_->vocabulary_size());
    }
  }

  std::shared_ptr<const TokenFile> long_documents(const std::shared_ptr<const TokenFile>& tokens) {
    std::shared_ptr<const TokenFile> rest = without_short_documents(tokens, config_.min_length);
    data_.short_documents += tokens->info().documents - rest->info().documents;
    return rest;
  }

  /// Text and rows were hashed when they were read.
  void list_contents() {
    size_t scanned = 0;
    const auto list = [&](const char* key, const std::vector<InputFile>& files, const std::string& role) {
      for (const InputFile& file : files) {
        const bool tokens = file.kind == InputKind::tokens;
        const std::string hash =
            tokens ? content_of_tokens(*token_files_.at(file.path)) : hex(scan_.digests.at(scanned++));
        data_.contents.push_back({key, file.path, hash, role});
      }
    };
    const bool mixed = sets_.sources.size() > 1;
    for (size_t s = 0; s < sets_.sources.size(); ++s) {
      list("data.train", sets_.sources[s],
           mixed ? fmt::format("source {}, weight {:g}", s + 1, sets_.weights[s]) : std::string());
    }
    list("data.validation", sets_.validation, "");
    if (data_.tokenizer == nullptr) return;
    const std::string serialized = data_.tokenizer->serialized();
    data_.contents.push_back(
        {"data.tokenizer", config_.tokenizer, hex(digest_of(serialized.data(), serialized.size())), ""});
  }

  void choose_tokenizer() {
    if (!is_encoded(scanned_.front().kind)) {
      if (!config_.add_bos) return;
      throw UserError(ExitCode::deck, "data.add_bos: rows of input_ids are used unchanged; set it to false");
    }
    const std::shared_ptr<const Tokenizer> stored = data_.tokenizer;
    if (stored && config_.tokenizer == "char" && stored->kind() == "char" &&
        (stored->bos_id() >= 0) == config_.add_bos) {
      return;  // a vocabulary of these characters alone would differ from that of the token files
    }
    data_.tokenizer = make_tokenizer();
    if (stored) check_same_tokenizer(config_, *data_.tokenizer, *stored, stored_in_);
  }

  std::shared_ptr<const Tokenizer> make_tokenizer() const {
    if (tokenizer_ == nullptr) refuse_added_tokens(config_);
    if (config_.tokenizer == "bytes") return make_byte_tokenizer(config_.add_bos);
    if (config_.tokenizer == "char") return make_char_tokenizer(scan_.code_points, config_.add_bos);
    return tokenizer_;
  }

  /// Rank 0 reads the files and broadcasts the result.
  void share_tokenizer(const std::string& path, bool for_text) {
    std::string serialized;
    on_root(communicator_, [&] {
      tokenizer_ = tokenizer_of(config_, path, for_text);
      serialized = tokenizer_->serialized();
    });
    communicator_.broadcast(serialized);
    throw_on_all_ranks(communicator_, [&] {
      if (communicator_.rank() != 0) tokenizer_ = make_tokenizer_from(serialized);
    });
  }

  /// Known only if a sample is a whole story, since the entropy is that of whole stories.
  double known_optimum() const {
    const auto built_in = [](const std::vector<InputFile>& files) { return files.front().name == builtin_stories; };
    const bool stories = built_in(sets_.sources.front()) && (sets_.validation.empty() || built_in(sets_.validation));
    const int64_t inputs = longest_story + (config_.add_bos ? 1 : 0);
    if (!stories || config_.packing == DataConfig::Packing::wrap || batch_.sequence_length < inputs) return 0;
    const StoriesOptimum optimum = stories_optimum();
    // With BOS every character is a target, otherwise all but the first; the end symbol always is.
    return config_.add_bos ? optimum.nats_per_story / (optimum.characters_per_story + 1) : optimum.nats_per_character;
  }

  SampleRules config_;  // with the labels of the rows
  const BatchConfig& batch_;
  Communicator& communicator_;
  ProgressReport report_;
  ChatSource chat_;
  std::unique_ptr<const ChatEncoder> encoder_;
  std::string folder_;
  InputSets sets_;
  std::shared_ptr<const Tokenizer> tokenizer_;      // loaded from files
  std::shared_ptr<const Tokenizer> ids_tokenizer_;  // tokenizer that the deck names for ids without one
  std::string stored_in_;                           // the token file that data_.tokenizer comes from
  std::map<std::string, std::shared_ptr<const TokenFile>> token_files_;  // by path
  std::vector<InputFile> scanned_;                                       // text and rows, in the order of sets_
  SourceScan scan_;                                                      // scan of these
  size_t scanned_before_ = 0;                                            // number of its files that are open
  Dataset data_;
};

void add_row_counts(const RowCounts& rows, std::string& text) {
  const auto add = [&](int64_t count, const std::string& what) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  };
  add(rows.untrained, "more left out: they have no token to train on");
  add(rows.equal, fmt::format("more left out: both answers are equal (the first at {})", rows.first_equal));
  add(rows.empty, fmt::format("more left out: an answer is empty (the first at {})", rows.first_empty));
  add(rows.irregular,
      fmt::format("more left out: their turns do not alternate (the first at {})", rows.first_irregular));
  add(rows.duplicates, "duplicates");
  add(rows.without_stop, "train no stop token at their end");
  add(rows.merged_borders, "in which one token spans the end of the prompt and the begin of the completion");
}

/// "3 shortest, 4.5 mean, 6 longest": tokens of every `step`-th document from `first` on.
std::string lengths_text(std::span<const uint64_t> borders, size_t first, size_t step) {
  uint64_t shortest = UINT64_MAX, longest = 0, sum = 0, count = 0;
  for (size_t d = first; d + 1 < borders.size(); d += step, ++count) {
    const uint64_t length = borders[d + 1] - borders[d];
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
    sum += length;
  }
  return fmt::format("{} shortest, {:.1f} mean, {} longest", shortest,
                     static_cast<double>(sum) / static_cast<double>(count), longest);
}

}  // namespace

std::string describe_rows(const RowCounts& rows) {
  if (rows.used == 0) return {};
  std::string text = fmt::format("{} rows of conversations", rows.used);
  add_row_counts(rows, text);
  return text;
}

std::string describe_rows(const TokenFile& file) {
  const TokenFileInfo& info = file.info();
  if (!info.has_groups()) return describe_rows(info.rows);
  std::string text;
  if (info.has_labels()) {
    text = fmt::format("{} texts with labels", info.documents);
  } else if (info.group > 1) {
    text = fmt::format("{} pairs{}", info.documents / info.group, info.column.empty() ? "" : " with margins");
  } else if (info.has_prompts()) {
    text = fmt::format("{} prompts", info.documents);
  } else {
    text = fmt::format("{} rows with a label, {} of them desirable", info.documents,
                       std::ranges::count(file.values(), 1.0F));
  }
  add_row_counts(info.rows, text);
  if (info.group == 1) return text + "; tokens: " + lengths_text(file.documents(), 0, 1);
  return fmt::format("{}; tokens of chosen: {}; of rejected: {}", text, lengths_text(file.documents(), 0, 2),
                     lengths_text(file.documents(), 1, 2));
}

Dataset open_dataset(const SampleRules& config, const BatchConfig& batch, Communicator& communicator,
                     const ProgressReport& report, const ChatSource& chat) {
  Dataset data = DatasetOpener(config, batch, communicator, report, chat).open();
  data.chat = chat;
  data.rules = config;
  data.rules.labels.names = data.labels;
#if defined(__GLIBC__)
  malloc_trim(0);  // otherwise the heap keeps the memory that training a tokenizer and encoding a text have freed
#endif
  return data;
}

TrainedTokenizer train_deck_tokenizer(const SampleRules& config, Communicator& communicator,
                                      const ProgressReport& report) {
  const BatchConfig none;
  return DatasetOpener(config, none, communicator, report).train_tokenizer_only();
}

}  // namespace llmtrain
