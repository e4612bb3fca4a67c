#include "tool/score_texts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/progress.hpp"
#include "core/utf8.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "device/device.hpp"
#include "parallel/job/launcher.hpp"
#include "tool/input_lines.hpp"
#include "tool/tool.hpp"

namespace llmtrain {

namespace {

using nlohmann::ordered_json;

constexpr size_t max_text_bytes = size_t{4} << 20;  // n-grams take up to about 500 bytes for each

/// Texts of a file: a line each, or a row's column each.
class TextFile {
 public:
  TextFile(const std::string& path, const std::string& column, const std::string& default_column)
      : name_(path == "-" ? "standard input" : path),
        column_(column.empty() ? default_column : column),
        rows_(!column.empty() || names_rows(path) || table_of(path) != TableKind::none),
        lines_(path) {}

  /// Appends the texts of the next segment; returns false at the end of the file.
  bool next(std::vector<std::string>& texts) {
    std::string_view line;
    do {
      if (!lines_.next(line)) return false;
      ++line_number_;
    } while (rows_ && is_blank(line));
    ++segments_;
    try {
      const size_t before = texts.size();
      if (rows_) {
        append_column(parse_json_row(line), texts);
      } else {
        texts.emplace_back(line);
      }
      for (size_t i = before; i < texts.size(); ++i) check_text(texts[i]);
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}: {}", place(), error.what()));
    }
    return true;
  }

  std::string place() const { return fmt::format("{}:{}", name_, line_number_); }
  int64_t line_number() const { return line_number_; }
  double done() const { return lines_.done(); }
  /// Reads the rest and says how many segments there are.
  std::string count() {
    for (std::string_view line; lines_.next(line);) segments_ += rows_ && is_blank(line) ? 0 : 1;
    return fmt::format("{} has {} {}", name_, segments_, rows_ ? "rows" : "lines");
  }

 private:
  void append_column(const ordered_json& row, std::vector<std::string>& texts) const {
    const auto value = row.find(column_);
    if (value == row.end()) {
      std::vector<std::string> keys;
      for (const auto& [key, unused] : row.items()) keys.push_back(key);
      throw UserError(ExitCode::bad_content,
                      fmt::format("the row has no column '{}', only {}", column_, fmt::join(keys, ", ")));
    }
    const ordered_json list = value->is_array() ? *value : ordered_json::array({*value});
    for (const ordered_json& text : list) {
      if (!text.is_string()) break;
      texts.push_back(text.get<std::string>());
    }
    if (!list.empty() && std::ranges::all_of(list, [](const ordered_json& text) { return text.is_string(); })) return;
    throw UserError(ExitCode::bad_content, fmt::format("column '{}' must be a text or a list of texts", column_));
  }

  static void check_text(const std::string& text) {
    if (text.size() > max_text_bytes) {
      throw UserError(
          ExitCode::bad_content,
          fmt::format("a text of {} bytes is too long; at most {} bytes are compared", text.size(), max_text_bytes));
    }
    const size_t invalid = find_invalid_utf8(text);
    if (invalid == std::string::npos) return;
    throw UserError(ExitCode::bad_content, fmt::format("byte {}: the text is not UTF-8", invalid + 1));
  }

  std::string name_, column_;
  bool rows_;
  InputLines lines_;
  int64_t line_number_ = 0, segments_ = 0;
};

/// Segments of the files, which must have as many.
class SegmentReader {
 public:
  explicit SegmentReader(const TextScoreOptions& options)
      : hypotheses_(options.hypotheses, options.hypothesis_column, "text") {
    for (const std::string& path : options.references) {
      references_.push_back(std::make_unique<TextFile>(path, options.reference_column, "reference"));
    }
  }

  bool next(TextSegment& segment) {
    std::vector<std::string> texts;
    segment.references.clear();
    const bool more = hypotheses_.next(texts);
    for (const auto& file : references_) {
      if (file->next(segment.references) == more) continue;
      throw UserError(ExitCode::bad_content, fmt::format("{}, but {}: each hypothesis needs its references",
                                                         hypotheses_.count(), file->count()));
    }
    if (!more) return false;
    if (texts.size() != 1) {
      throw UserError(ExitCode::bad_content, hypotheses_.place() + ": a hypothesis must be one text");
    }
    segment.hypothesis = std::move(texts.front());
    counts_.insert(segment.references.size());
    return true;
  }

  int64_t line_number() const { return hypotheses_.line_number(); }
  double done() const { return hypotheses_.done(); }
  std::string place() const { return hypotheses_.place(); }
  /// Returns the number of references of each segment, as in sacreBLEU's signatures.
  std::string reference_count() const { return counts_.size() == 1 ? std::to_string(*counts_.begin()) : "var"; }

 private:
  TextFile hypotheses_;
  std::vector<std::unique_ptr<TextFile>> references_;
  std::set<size_t> counts_;
};

/// A metric with the sums of the corpus.
struct RunningScore {
  std::string name;
  std::unique_ptr<TextMetric> metric;
  std::vector<double> sums;

  /// Adds a segment and returns its own score.
  double add(const TextSegment& segment) {
    std::vector<double> own(metric->size());
    metric->add(segment, own);
    for (size_t i = 0; i < own.size(); ++i) sums[i] += own[i];
    return metric->score(own).value;
  }

  void print(int64_t segments, const std::string& references, bool json) const {
    const TextScore score = metric->score(sums);
    const std::string signature = metric->signature(references);
    if (json) {
      ordered_json out = {{"metric", name}, {"score", score.value}};
      for (const auto& [key, value] : score.details) out[key] = value;
      if (!signature.empty()) out["signature"] = signature;
      out["segments"] = segments;
      std::cout << out.dump() << '\n';
      return;
    }
    std::vector<std::string> details;
    for (const auto& [key, value] : score.details) details.push_back(fmt::format("{} {:.6g}", key, value));
    std::cout << fmt::format("{}{}{} = {:.4f}{}\n", name, signature.empty() ? "" : "|", signature, score.value,
                             details.empty() ? "" : fmt::format("  ({})", fmt::join(details, ", ")));
  }
};

void print_segment(int64_t line, const std::vector<RunningScore>& scores, const std::vector<double>& values,
                   bool json) {
  ordered_json out = {{"line", line}};
  std::vector<std::string> texts;
  for (size_t i = 0; i < scores.size(); ++i) {
    out[scores[i].name] = values[i];
    texts.push_back(fmt::format("{} {:.4f}", scores[i].name, values[i]));
  }
  std::cout << (json ? out.dump() : fmt::format("line {}: {}", line, fmt::join(texts, ", "))) << '\n';
}

template <NamedEnum E>
E parse_choice(const std::string& option, const std::string& name) {
  const auto found = std::ranges::find(enum_names<E>, name);
  if (found != enum_names<E>.end()) return static_cast<E>(found - enum_names<E>.begin());
  refuse_command_line(fmt::format("{} must be one of {}, not '{}'", option, fmt::join(enum_names<E>, ", "), name));
}

TextMetricOptions metric_options(const TextScoreOptions& options) {
  using Smoothing = TextMetricOptions::Smoothing;
  TextMetricOptions parsed = options.metric;
  parsed.tokenizer = parse_choice<TextMetricOptions::Tokenizer>("--tokenize", options.tokenize);
  parsed.smoothing = parse_choice<Smoothing>("--smooth-method", options.smooth_method);
  parsed.effective_order = options.sentence_level;
  const bool has_value = parsed.smoothing == Smoothing::floor || parsed.smoothing == Smoothing::add_k;
  if (parsed.smooth_value && !has_value) {
    refuse_command_line("--smooth-value needs --smooth-method floor or add-k");
  }
  if (parsed.smooth_value && !std::isfinite(*parsed.smooth_value)) {
    refuse_command_line("--smooth-value must be a finite number");
  }
  return parsed;
}

/// The names, with rouge as the metrics of that family.
std::vector<std::string> with_families(const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& name : names) {
    if (name != "rouge") {
      all.push_back(name);
      continue;
    }
    for (const TextMetricEntry& metric : text_metrics()) {
      if (metric.name.starts_with("rouge")) all.emplace_back(metric.name);
    }
  }
  return all;
}

std::vector<RunningScore> make_scores(const std::vector<std::string>& metrics, const TextScoreOptions& options) {
  const TextMetricOptions settings = metric_options(options);
  std::vector<RunningScore> scores;
  std::string used;
  for (const std::string& name : with_families(metrics)) {
    const TextMetricEntry* entry = find_text_metric(name);
    if (entry == nullptr) {
      std::vector<std::string_view> names;
      for (const TextMetricEntry& metric : text_metrics()) names.push_back(metric.name);
      refuse_command_line(
          fmt::format("--metric must be reward, or some of {}; not '{}'", fmt::join(names, ", "), name));
    }
    used.append(entry->settings).append(" ");
    RunningScore& score = scores.emplace_back();
    score.name = name;
    score.metric = entry->make(settings);
    score.sums.resize(score.metric->size());
  }
  for (const std::string option :
       {"--tokenize", "--lowercase", "--smooth-method", "--smooth-value", "--stem", "--layer", "--idf", "--baseline"}) {
    const std::vector<std::string> given = options.given();
    if (std::ranges::find(given, option) == given.end() || used.find(option) != std::string::npos) continue;
    refuse_command_line(fmt::format("{} has no effect on --metric {}", option, fmt::join(metrics, ",")));
  }
  return scores;
}

/// Shows all segments to the metrics that need them beforehand.
void read_corpus(std::vector<RunningScore>& scores, const TextScoreOptions& options) {
  const bool needed = std::ranges::any_of(scores, [](const RunningScore& s) { return s.metric->needs_corpus(); });
  if (!needed) return;
  std::vector<TextSegment> all;
  SegmentReader reader(options);
  for (TextSegment segment; reader.next(segment);) all.push_back(segment);
  for (RunningScore& score : scores) score.metric->read_corpus(all);
}

}  // namespace

void TextScoreOptions::add_to(CLI::App& app) {
  options_ = {
      app.add_option("--hypotheses", hypotheses,
                     "texts to score: a line each, or a column of rows (.jsonl, or a table); - is the standard input"),
      app.add_option("--references", references,
                     "files of as many references; several files, or lists in rows, are several references"),
      app.add_option("--hypothesis-column", hypothesis_column, "column of rows with the hypothesis (text)"),
      app.add_option("--reference-column", reference_column,
                     "column of rows with the reference, or a list of them (reference)"),
      app.add_option("--tokenize", tokenize, "BLEU's tokens: 13a, intl, none or char")->capture_default_str(),
      app.add_option("--smooth-method", smooth_method, "BLEU of orders without matches: exp, floor, add-k or none")
          ->capture_default_str(),
      app.add_option("--smooth-value", metric.smooth_value, "value of floor (0.1) or add-k (1)")
          ->check(CLI::Range(0.0, 1e6)),
      app.add_flag("--lowercase", metric.lowercase, "BLEU and chrF without regard to case"),
      app.add_flag("--stem", metric.stemmer, "ROUGE of Porter's stems"),
      app.add_option(
             "--layer", metric.encoder_layer,
             "layer whose embeddings are compared; default: bert-score's for encoders of this shape, a decoder's last")
          ->check(CLI::Range(1, 1000)),
      app.add_flag("--idf", metric.idf, "BERTScore weighs tokens by how few references have them"),
      app.add_option("--baseline", metric.baseline,
                     "file of bert-score (LAYER,P,R,F), by which its scores are rescaled"),
      app.add_flag("--sentence-level", sentence_level,
                   "print the score of each segment; BLEU then leaves out orders that a segment does not have"),
  };
}

std::vector<std::string> TextScoreOptions::given() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : options_) {
    if (option->count() > 0) names.push_back(option->get_name());
  }
  return names;
}

void score_texts(const std::vector<std::string>& metrics, const TextScoreOptions& options, bool json) {
  std::optional<DeviceRuntime> device;  // outlives the models
  std::vector<RunningScore> scores = make_scores(metrics, options);
  if (options.hypotheses.empty() || options.references.empty()) {
    refuse_command_line("these metrics compare --hypotheses with --references");
  }
  if (options.metric.idf && (options.hypotheses == "-" || std::ranges::count(options.references, "-") > 0)) {
    refuse_command_line("--idf reads the files twice: none can be the standard input");
  }
  if (std::ranges::count(options.references, "-") + (options.hypotheses == "-" ? 1 : 0) > 1) {
    refuse_command_line("only one file can be the standard input");
  }
  if (std::ranges::any_of(scores, [](const RunningScore& s) { return s.metric->needs_device(); })) {
    device.emplace(0, choose_threads(find_thread_facts(1)).threads);
  }
  read_corpus(scores, options);
  SegmentReader reader(options);
  TextSegment segment;
  std::vector<double> values(scores.size());
  int64_t segments = 0;
  std::optional<Progress> progress;
  if (!options.sentence_level) progress.emplace("scoring");
  for (; reader.next(segment); ++segments) {
    if (progress) progress->set_fraction(reader.done());
    try {
      std::ranges::transform(scores, values.begin(), [&](RunningScore& score) { return score.add(segment); });
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}: {}", reader.place(), error.what()));
    }
    if (options.sentence_level) print_segment(reader.line_number(), scores, values, json);
  }
  if (segments == 0) throw UserError(ExitCode::bad_content, options.hypotheses + ": there is no text to score");
  if (options.sentence_level) return;
  for (const RunningScore& score : scores) score.print(segments, reader.reference_count(), json);
}

}  // namespace llmtrain
