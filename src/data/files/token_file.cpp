#include "data/files/token_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/token_format.hpp"

namespace llmtrain {
namespace {

constexpr int64_t piece_tokens = int64_t{1} << 16;

/// Reads through a file descriptor at the offsets that HDF5 reported once, so that any thread can read.
class StoredTokens final : public TokenFile {
 public:
  StoredTokens(const std::string& path, int64_t rows, Communicator& ranks)
      : ranks_(ranks.size() > 1 ? ranks : this_process()) {
    throw_on_all_ranks(ranks_, [&] {
      layout_ = token_format::read_layout(path);
      info_ = layout_.info;
      file_ = FileHandle::open_to_read(path);
    });
    if (rows > 0) info_.vocabulary_size = std::min(info_.vocabulary_size, rows);
    file_.expect_scattered_reads();
    documents_ =
        make_node_array<uint64_t>(ranks_, [&] { return read_offsets(layout_.documents, "documents", tokens()); });
    if (info_.has_prompts()) {
      row_offsets_ = make_node_array<uint64_t>(
          ranks_, [&] { return read_offsets(layout_.row_offsets, "row_offsets", row_bytes()); });
    }
    values_ = make_node_array<float>(ranks_, [&] { return read_values(); });
  }

  std::span<const float> values() const override { return values_.values(); }
  Communicator& ranks() const override { return ranks_; }

  std::string row_text(int64_t document) const override {
    if (row_offsets_.empty()) return {};
    LLMTRAIN_CHECK(document >= 0 && document < info_.documents, "no such document");
    const auto d = static_cast<size_t>(document);
    std::string text(row_offsets_[d + 1] - row_offsets_[d], '\0');
    file_.read(layout_.rows.offset + static_cast<int64_t>(row_offsets_[d]), std::ssize(text), text.data());
    return text;
  }

  void read(int64_t begin, int64_t count, int32_t* ids) const override {
    LLMTRAIN_CHECK(begin >= 0 && count >= 0 && begin <= tokens() - count, "tokens outside the file");
    const auto position = [&](int64_t i) { return layout_.tokens.offset + (begin + i) * layout_.tokens.width; };
    for (int64_t done = 0; done < count; done += piece_tokens) {
      const int64_t n = std::min(piece_tokens, count - done);
      uint32_t highest = 0;
      if (layout_.tokens.width == 2) {
        thread_local std::vector<uint16_t> narrow(piece_tokens);
        file_.read(position(done), n * 2, narrow.data());
        for (int64_t i = 0; i < n; ++i) {
          const uint32_t id = narrow[static_cast<size_t>(i)];
          highest = std::max(highest, id);
          ids[done + i] = static_cast<int32_t>(id);
        }
      } else {
        file_.read(position(done), n * 4, ids + done);
        for (int64_t i = 0; i < n; ++i) highest = std::max(highest, static_cast<uint32_t>(ids[done + i]));
      }
      if (int64_t{highest} >= info_.vocabulary_size) refuse(highest, begin + done, n);
    }
  }

  void read_mask(int64_t begin, int64_t count, uint8_t* mask) const override {
    LLMTRAIN_CHECK(begin >= 0 && count >= 0 && begin <= tokens() - count, "tokens outside the file");
    if (!info_.has_mask) {
      std::fill_n(mask, count, uint8_t{1});
      return;
    }
    file_.read(layout_.mask.offset + begin, count, mask);
    for (int64_t i = 0; i < count; ++i) {
      if (mask[i] > 1) {
        throw UserError(ExitCode::bad_content,
                        fmt::format("{}: /mask is {} at token {}, it must be 0 or 1", info_.path, mask[i], begin + i));
      }
    }
  }

 private:
  int64_t row_bytes() const { return layout_.rows.elements; }

  /// Offsets that ascend from 0 to `end`; no range between them is empty.
  std::vector<uint64_t> read_offsets(const token_format::Region& region, std::string_view name, int64_t end) const {
    std::vector<uint64_t> offsets(static_cast<size_t>(region.elements));
    file_.read(region.offset, region.elements * 8, offsets.data());
    const bool ascending = std::ranges::adjacent_find(offsets, std::greater_equal<>()) == offsets.end();
    if (ascending && offsets.front() == 0 && offsets.back() == static_cast<uint64_t>(end)) return offsets;
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: not a usable token file: /{} must ascend from 0 to {}", info_.path, name, end));
  }

  std::vector<float> read_values() const {
    std::vector<float> values(static_cast<size_t>(layout_.values.elements));
    if (values.empty()) return values;
    file_.read(layout_.values.offset, layout_.values.elements * 4, values.data());
    const bool labels = info_.column == "label";
    const auto wrong = std::ranges::find_if(
        values, [&](float value) { return !std::isfinite(value) || (labels && value != 0 && value != 1); });
    if (wrong == values.end()) return values;
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: not a usable token file: the {} of document {} is {}, it must be {}", info_.path,
                                info_.column, wrong - values.begin() + 1, *wrong, labels ? "0 or 1" : "finite"));
  }

  [[noreturn]] void refuse(uint32_t id, int64_t begin, int64_t count) const {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: token id {} among tokens {} to {} is outside the vocabulary of {}; the file is "
                                "damaged or changed, or its vocabulary_size is wrong",
                                info_.path, id, begin, begin + count, info_.vocabulary_size));
  }

  Communicator& ranks_;
  token_format::Layout layout_;
  FileHandle file_;
  NodeArray<uint64_t> row_offsets_;
  NodeArray<float> values_;
};

/// View of tokens [begin, end) of another file; documents that a border cuts are shorter here.
class TokenRange final : public TokenFile {
 public:
  TokenRange(std::shared_ptr<const TokenFile> base, int64_t begin, int64_t end)
      : base_(std::move(base)), begin_(begin) {
    info_ = base_->info();
    info_.tokens = end - begin;
    info_.characters = info_.bytes = 0;
    documents_ = make_node_array<uint64_t>(ranks(), [&] {
      std::vector<uint64_t> offsets{0};
      for (const uint64_t border : base_->documents()) {
        const int64_t offset = static_cast<int64_t>(border);
        if (offset > begin && offset < end) offsets.push_back(static_cast<uint64_t>(offset - begin));
      }
      offsets.push_back(static_cast<uint64_t>(end - begin));
      return offsets;
    });
    info_.documents = static_cast<int64_t>(documents_.size()) - 1;
    const std::span<const uint64_t> all = base_->documents();
    first_document_ = std::ranges::upper_bound(all, static_cast<uint64_t>(begin)) - all.begin() - 1;
    const auto first = static_cast<size_t>(first_document_), count = documents_.size() - 1;
    values_ = base_->values_of(first, first + count);
  }

  std::span<const float> values() const override { return values_; }
  Communicator& ranks() const override { return base_->ranks(); }
  std::string row_text(int64_t document) const override { return base_->row_text(first_document_ + document); }
  void read(int64_t begin, int64_t count, int32_t* ids) const override {
    LLMTRAIN_CHECK(begin >= 0 && count >= 0 && begin <= tokens() - count, "tokens outside the range");
    base_->read(begin_ + begin, count, ids);
  }
  void read_mask(int64_t begin, int64_t count, uint8_t* mask) const override {
    LLMTRAIN_CHECK(begin >= 0 && count >= 0 && begin <= tokens() - count, "tokens outside the range");
    base_->read_mask(begin_ + begin, count, mask);
  }

 private:
  std::shared_ptr<const TokenFile> base_;
  int64_t begin_;
  int64_t first_document_ = 0;  // in the other file
  std::span<const float> values_;
};

/// Returns true if all documents of a group have at least this many tokens.
bool is_long_group(std::span<const uint64_t> borders, size_t first, size_t group, int64_t min_length) {
  bool all = true;
  for (size_t d = first; d < first + group; ++d) {
    all = all && static_cast<int64_t>(borders[d + 1] - borders[d]) >= min_length;
  }
  return all;
}

/// View of some documents of another file.
class SomeDocuments final : public TokenFile {
 public:
  SomeDocuments(std::shared_ptr<const TokenFile> base, int64_t min_length) : base_(std::move(base)) {
    info_ = base_->info();
    Lists lists{.documents = {0}};
    if (ranks().rank() == 0) list_documents(min_length, lists);
    const auto share = [&](auto& values) { return NodeArray(std::move(values)).shared(ranks()); };
    documents_ = share(lists.documents);
    values_ = share(lists.values);
    numbers_ = share(lists.numbers);
    runs_ = share(lists.runs);
    begins_ = share(lists.begins);
    info_.documents = static_cast<int64_t>(documents_.size()) - 1;
    info_.tokens = static_cast<int64_t>(documents_.values().back());
    info_.characters = info_.bytes = 0;
  }

  std::span<const float> values() const override { return values_.values(); }
  Communicator& ranks() const override { return base_->ranks(); }
  std::string row_text(int64_t document) const override {
    return numbers_.empty() ? std::string() : base_->row_text(numbers_[static_cast<size_t>(document)]);
  }
  void read(int64_t begin, int64_t count, int32_t* ids) const override {
    for_each_run(begin, count, [&](int64_t from, int64_t n) {
      base_->read(from, n, ids);
      ids += n;
    });
  }
  void read_mask(int64_t begin, int64_t count, uint8_t* mask) const override {
    for_each_run(begin, count, [&](int64_t from, int64_t n) {
      base_->read_mask(from, n, mask);
      mask += n;
    });
  }

 private:
  struct Lists {
    std::vector<uint64_t> documents, runs = {}, begins = {};
    std::vector<float> values = {};
    std::vector<int64_t> numbers = {};
  };
  void list_documents(int64_t min_length, Lists& lists) const {
    const std::span<const uint64_t> all = base_->documents();
    const auto group = static_cast<size_t>(info_.group);
    bool follows = false;  // the document follows one of the view
    for (size_t d = 0; d + 1 < all.size(); ++d) {
      const bool taken = is_long_group(all, d / group * group, group, min_length);
      if (taken && !follows) {
        lists.runs.push_back(lists.documents.back());
        lists.begins.push_back(all[d]);
      }
      if (taken) lists.documents.push_back(lists.documents.back() + all[d + 1] - all[d]);
      if (taken) std::ranges::copy(base_->values_of(d, d + 1), std::back_inserter(lists.values));
      if (taken && info_.has_prompts()) lists.numbers.push_back(static_cast<int64_t>(d));
      follows = taken;
    }
  }
  template <class Use>
  void for_each_run(int64_t begin, int64_t count, const Use& use) const {
    LLMTRAIN_CHECK(begin >= 0 && count >= 0 && begin <= tokens() - count, "tokens outside the view");
    if (count == 0) return;
    size_t run = static_cast<size_t>(std::upper_bound(runs_.begin(), runs_.end(), static_cast<uint64_t>(begin)) -
                                     runs_.begin()) -
                 1;
    for (; count > 0; ++run) {
      const int64_t end = run + 1 < runs_.size() ? static_cast<int64_t>(runs_[run + 1]) : tokens();
      const int64_t n = std::min(count, end - begin);
      use(static_cast<int64_t>(begins_[run]) + begin - static_cast<int64_t>(runs_[run]), n);
      begin += n;
      count -= n;
    }
  }

  std::shared_ptr<const TokenFile> base_;
  NodeArray<float> values_;
  NodeArray<int64_t> numbers_;         // of prompts in the other file
  NodeArray<uint64_t> runs_, begins_;  // runs of consecutive documents: where each begins here, and in the other file
};

class JoinedTokens final : public TokenFile {
 public:
  explicit JoinedTokens(std::vector<std::shared_ptr<const TokenFile>> files) : files_(std::move(files)) {
    info_ = files_.front()->info();
    borders_.push_back(0);
    info_.tokens = info_.characters = info_.bytes = info_.skipped_documents = 0;
    info_.sources.clear();
    info_.has_mask = false;
    info_.rows = {};
    const bool rated = std::ranges::all_of(files_, [](const auto& file) { return file->info().has_difficulties(); });
    if (!rated) info_.column = info_.group_column();
    for (const auto& file : files_) add(*file);
    documents_ = make_node_array<uint64_t>(ranks(), [&] {
      std::vector<uint64_t> offsets{0};
      for (size_t i = 0; i < files_.size(); ++i) {
        const auto before = static_cast<uint64_t>(borders_[i]);
        for (const uint64_t offset : files_[i]->documents().subspan(1)) offsets.push_back(before + offset);
      }
      return offsets;
    });
    values_ = make_node_array<float>(ranks(), [&] {
      std::vector<float> all;
      for (const auto& file : files_) {
        if (info_.has_values()) all.insert(all.end(), file->values().begin(), file->values().end());
      }
      return all;
    });
    info_.documents = static_cast<int64_t>(documents_.size()) - 1;
  }

  std::span<const float> values() const override { return values_.values(); }
  Communicator& ranks() const override { return files_.front()->ranks(); }
  std::string row_text(int64_t document) const override {
    size_t i = 0;
    while (i + 1 < files_.size() && document >= files_[i]->info().documents) document -= files_[i++]->info().documents;
    return files_[i]->row_text(document);
  }
  void read(int64_t begin, int64_t count, int32_t* ids) const override {
    for_each_file(begin, count, [&](const TokenFile& file, int64_t from, int64_t n) {
      file.read(from, n, ids);
      ids += n;
    });
  }
  void read_mask(int64_t begin, int64_t count, uint8_t* mask) const override {
    for_each_file(begin, count, [&](const TokenFile& file, int64_t from, int64_t n) {
      file.read_mask(from, n, mask);
      mask += n;
    });
  }

 private:
  void add(const TokenFile& file) {
    const TokenFileInfo& other = file.info();
    // The highest id is the only vocabulary that rows of ids have.
    const bool rows = other.tokenizer_hash.empty() && info_.tokenizer_hash.empty() && other.eos_id < 0;
    if ((other.vocabulary_size != info_.vocabulary_size && !rows) || other.eos_id != info_.eos_id ||
        other.tokenizer_hash != info_.tokenizer_hash) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{} and {} were made with different tokenizers (vocabulary {} and {}); token files "
                                  "that are used together need the same tokenizer",
                                  info_.path, other.path, info_.vocabulary_size, other.vocabulary_size));
    }
    if (other.group != info_.group || other.group_column() != info_.group_column() || other.width != info_.width) {
      const auto kind = [](const TokenFileInfo& of) {
        return of.group > 1       ? "pairs"
               : !of.has_groups() ? "documents without a preference"
               : of.has_prompts() ? "prompts"
               : of.has_labels()  ? "texts with labels"
                                  : "documents with a label";
      };
      throw UserError(
          ExitCode::bad_content,
          fmt::format("{} has {} and {} has {}{}; token files that are used together need the same", info_.path,
                      kind(info_), other.path, kind(other),
                      other.group == info_.group && other.group > 1 ? ", and one of them has margins" : ""));
    }
    info_.vocabulary_size = std::max(info_.vocabulary_size, other.vocabulary_size);
    info_.tokens += file.tokens();
    info_.characters += other.characters;
    info_.bytes += other.bytes;
    info_.skipped_documents += other.skipped_documents;
    info_.has_mask = info_.has_mask || other.has_mask;
    info_.rows += other.rows;
    info_.sources.insert(info_.sources.end(), other.sources.begin(), other.sources.end());
    borders_.push_back(info_.tokens);
  }

  template <class Use>
  void for_each_file(int64_t begin, int64_t count, const Use& use) const {
    LLMTRAIN_CHECK(begin >= 0 && count >= 0 && begin <= tokens() - count, "tokens outside the files");
    size_t i = static_cast<size_t>(std::upper_bound(borders_.begin(), borders_.end(), begin) - borders_.begin()) - 1;
    for (; count > 0; ++i) {
      const int64_t n = std::min(count, borders_[i + 1] - begin);
      use(*files_[i], begin - borders_[i], n);
      begin += n;
      count -= n;
    }
  }

  std::vector<std::shared_ptr<const TokenFile>> files_;
  std::vector<int64_t> borders_;
  NodeArray<float> values_;
};

}  // namespace

std::string TokenFile::row_text(int64_t) const { return {}; }

std::span<const float> TokenFile::values_of(size_t first, size_t last) const {
  const size_t width = values().empty() ? 0 : static_cast<size_t>(info().width);
  if (!info().has_token_labels()) return values().subspan(first * width, (last - first) * width);
  return values().subspan(documents()[first], documents()[last] - documents()[first]);
}

Communicator& TokenFile::ranks() const { return this_process(); }

std::string StoredRow::text() const { return fmt::format("{}\n{} {}", columns, offset, name); }

StoredRow StoredRow::parse(std::string_view text) {
  const size_t end = text.find('\n');
  StoredRow row{std::string(text.substr(0, end)), {}, -1};
  if (end == std::string_view::npos) return row;
  const std::string_view origin = text.substr(end + 1);
  const auto [next, error] = std::from_chars(origin.data(), origin.data() + origin.size(), row.offset);
  const auto digits = static_cast<size_t>(next - origin.data());
  if (error != std::errc() || digits >= origin.size()) return {row.columns, {}, -1};
  row.name = origin.substr(digits + 1);
  return row;
}

RowCounts& RowCounts::operator+=(const RowCounts& other) {
  for (const auto member : {&RowCounts::used, &RowCounts::untrained, &RowCounts::duplicates, &RowCounts::merged_borders,
                            &RowCounts::without_stop, &RowCounts::equal, &RowCounts::empty, &RowCounts::irregular}) {
    this->*member += other.*member;
  }
  if (first_equal.empty()) first_equal = other.first_equal;
  if (first_empty.empty()) first_empty = other.first_empty;
  if (first_irregular.empty()) first_irregular = other.first_irregular;
  return *this;
}

std::shared_ptr<const TokenFile> open_token_file(const std::string& path, int64_t rows, Communicator& ranks) {
  return std::make_shared<const StoredTokens>(path, rows, ranks);
}

SplitTokens split_tokens(std::shared_ptr<const TokenFile> file, double validation_fraction) {
  LLMTRAIN_CHECK(validation_fraction >= 0 && validation_fraction < 1, "a fraction of the tokens is in [0, 1)");
  const int64_t tokens = file->tokens();
  int64_t border = static_cast<int64_t>(std::floor(static_cast<double>(tokens) * (1 - validation_fraction)));
  if (file->info().rows.used > 0 || file->info().has_groups()) {
    const std::span<const uint64_t> documents = file->documents();
    const auto next = std::ranges::upper_bound(documents, static_cast<uint64_t>(border));
    const std::ptrdiff_t before = next - documents.begin() - 1;
    border = static_cast<int64_t>(documents[static_cast<size_t>(before - before % file->info().group)]);
  }
  if (validation_fraction == 0) return {std::move(file), nullptr};
  if (border <= 0 || border >= tokens) {
    throw UserError(
        ExitCode::bad_content,
        fmt::format(
            "{}: of {} tokens, data.validation_fraction = {} leaves {} for training and {} for validation; both "
            "need some. Give another fraction, 0 (no evaluation) or more text",
            file->info().path, tokens, validation_fraction, border, tokens - border));
  }
  return {std::make_shared<const TokenRange>(file, 0, border),
          std::make_shared<const TokenRange>(file, border, tokens)};
}

std::shared_ptr<const TokenFile> without_short_documents(std::shared_ptr<const TokenFile> file, int64_t min_length) {
  const std::span<const uint64_t> documents = file->documents();
  if (is_long_group(documents, 0, documents.size() - 1, min_length)) return file;
  auto view = std::make_shared<const SomeDocuments>(file, min_length);
  if (view->tokens() > 0) return view;
  throw UserError(ExitCode::bad_content, fmt::format("{}: every document has fewer tokens than data.min_length = {}",
                                                     file->info().path, min_length));
}

std::shared_ptr<const TokenFile> concatenate_tokens(std::vector<std::shared_ptr<const TokenFile>> files) {
  LLMTRAIN_CHECK(!files.empty(), "no token files");
  if (files.size() == 1) return files.front();
  return std::make_shared<const JoinedTokens>(std::move(files));
}

std::string content_of_tokens(const TokenFile& file) {
  constexpr int64_t samples = 256, sample_tokens = 1024;
  const auto sample_of = [](int64_t most, int64_t sample) {  // from 0 to `most`
    return most / (samples - 1) * sample + most % (samples - 1) * sample / (samples - 1);
  };
  const TokenFileInfo& info = file.info();
  const int64_t tokens = file.tokens();
  const std::string facts = fmt::format("{} {} {} {} {} {}", tokens, file.documents().size(), info.vocabulary_size,
                                        info.eos_id, info.has_mask, info.tokenizer_hash);
  StreamHash hash;
  hash.update(facts.data(), facts.size());
  if (info.has_groups() || info.has_values()) {
    const std::string kind = fmt::format(" {} {}", info.group, info.column);
    hash.update(kind.data(), kind.size());
    hash.update(file.values().data(), file.values().size_bytes());
  }
  std::vector<int32_t> ids(static_cast<size_t>(std::min(sample_tokens, tokens)));
  std::vector<uint8_t> mask(info.has_mask ? ids.size() : 0);
  const int64_t last = tokens - static_cast<int64_t>(ids.size());  // begin of the last sample
  for (int64_t sample = 0; sample < samples && !ids.empty(); ++sample) {
    const int64_t begin = sample_of(last, sample);
    file.read(begin, static_cast<int64_t>(ids.size()), ids.data());
    hash.update(ids.data(), ids.size() * sizeof(int32_t));
    if (info.has_mask) {
      file.read_mask(begin, static_cast<int64_t>(mask.size()), mask.data());
      hash.update(mask.data(), mask.size());
    }
    if (last == 0) break;
  }
  for (int64_t sample = 0; sample < samples && info.has_prompts(); ++sample) {
    const std::string row = file.row_text(sample_of(info.documents - 1, sample));
    const std::string columns = StoredRow::parse(row).columns;
    hash.update(columns.data(), columns.size());
  }
  return hex(hash.digest());
}

}  // namespace llmtrain
