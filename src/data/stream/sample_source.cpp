#include "data/stream/sample_source.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// The token file, which may be in the cache, and the first of the files that it was made of.
std::string place_of(const TokenFileInfo& info) {
  if (info.sources.empty()) return info.path;
  const std::string& source = info.sources.front();  // name, size and hash
  const size_t size = source.rfind(' ', source.rfind(' ') - 1);
  return fmt::format("{} (made of {}{})", info.path, source.substr(0, size), info.sources.size() > 1 ? ", ..." : "");
}

}  // namespace

SampleSource::SampleSource(std::shared_ptr<const TokenFile> file, const SampleRules& data, const BatchConfig& batch,
                           int64_t first_id)
    : file_(std::move(file)),
      windows_(data.packing == DataConfig::Packing::wrap && !file_->info().has_groups()),
      across_documents_(data.cross_document_attention && windows_),
      scores_(data.targets_behind() == 0),
      first_id_(first_id),
      index_(*file_, data, batch) {
  require_trained_target();
}

/// Searches for a target; ordinary files have one in the first sample.
void SampleSource::require_trained_target() const {
  std::vector<uint8_t> mask;
  for (int64_t sample = 0; sample < samples(); ++sample) {
    if (trained_targets(sample, mask) > 0) return;
  }
  throw UserError(ExitCode::bad_content,
                  place_of(file_->info()) +
                      ": no token of it is a target to train on: every label is -100, the mask is 0 everywhere, or "
                      "no document has two tokens");
}

/// Returns the document borders in (begin, begin + inputs]: targets there are another document's first token.
std::span<const uint64_t> SampleSource::borders_in(const SampleSpan& span) const {
  if (!windows_) return {};  // the span lies in one document
  const std::span<const uint64_t> all = file_->documents();
  const auto begin = static_cast<uint64_t>(span.begin), end = static_cast<uint64_t>(span.begin + span.inputs);
  const auto first = std::upper_bound(all.begin(), all.end(), begin);
  const auto most = std::min<std::ptrdiff_t>(span.inputs, all.end() - first);
  return {first, std::upper_bound(first, first + most, end)};
}

int64_t SampleSource::trained_targets(int64_t sample, std::vector<uint8_t>& mask, int64_t longest) const {
  int64_t count = 0;
  each_span(sample, longest, [&](size_t, const SampleSpan& span) { count += targets_in(span, mask); });
  return count;
}

int64_t SampleSource::trained_targets(int64_t sample, size_t number, std::vector<uint8_t>& mask) const {
  return targets_in(index_.span(sample, number), mask);
}

int64_t SampleSource::targets_in(SampleSpan span, std::vector<uint8_t>& mask) const {
  if (file_->info().has_token_labels()) {
    return std::ranges::count_if(token_labels(span), [](float label) { return label >= 0; });
  }
  if (scores_) return 1;
  span.begin += span.context;  // the rest counts
  span.inputs -= span.context;
  const std::span<const uint64_t> borders = borders_in(span);
  if (!file_->info().has_mask) return span.inputs - static_cast<int64_t>(borders.size());
  mask.resize(static_cast<size_t>(span.inputs));
  file_->read_mask(span.begin + 1, span.inputs, mask.data());
  int64_t count = std::ranges::count(mask, uint8_t{1});
  for (const uint64_t border : borders) {
    count -= mask[static_cast<size_t>(border) - static_cast<size_t>(span.begin) - 1];
  }
  return count;
}

SampleSource::Completion SampleSource::completion_of(int64_t sample) const {
  const SampleSpan span = index_.span(sample, 0);
  Completion document;
  document.ids.resize(static_cast<size_t>(span.inputs) + 1);
  file_->read(span.begin, span.inputs + 1, document.ids.data());
  document.mask.assign(static_cast<size_t>(span.inputs), 1);
  if (file_->info().has_mask) file_->read_mask(span.begin + 1, span.inputs, document.mask.data());
  const auto first = std::ranges::find(document.mask, uint8_t{1});
  document.begin = static_cast<size_t>(first - document.mask.begin()) + 1;
  return document;
}

void SampleSource::append_mismatched(int64_t sample, const SampleSource& other, int64_t other_sample, int64_t longest,
                                     HostBatch& out) const {
  const Completion prompt = completion_of(sample), completion = other.completion_of(other_sample);
  std::vector<int32_t> ids(prompt.ids.begin(), prompt.ids.begin() + static_cast<std::ptrdiff_t>(prompt.begin));
  std::vector<uint8_t> mask(prompt.begin - 1, 0);
  ids.insert(ids.end(), completion.ids.begin() + static_cast<std::ptrdiff_t>(completion.begin), completion.ids.end());
  mask.insert(mask.end(), completion.mask.begin() + static_cast<std::ptrdiff_t>(completion.begin) - 1,
              completion.mask.end());
  const size_t inputs = std::min(mask.size(), static_cast<size_t>(longest));
  const size_t row = out.ids.size();
  out.add_segment(std::span(ids).first(inputs), first_id_ + sample);
  for (size_t i = 0; i < inputs; ++i) {
    if (mask[i] == 0) continue;
    out.targets[row + i] = ids[i + 1];
    out.loss_weights[row + i] = 1;
  }
  out.documents.ids.push_back(first_id_ + sample);
  out.documents.targets.push_back(std::count(mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(inputs), 1));
}

void SampleSource::append(int64_t sample, HostBatch& out, int64_t longest) const {
  const size_t row = out.ids.size();
  each_span(sample, longest, [&](size_t number, const SampleSpan& span) {
    const size_t first = out.ids.size();
    scores_ ? append_scored_span(span, out) : append_span(span, out);
    if (has_groups()) append_document(sample, number, first, out);
  });
  const size_t rows = out.ids.size() - row;
  out.sequence_ids.insert(out.sequence_ids.end(), rows, first_id_ + sample);
  for (size_t i = 0; i < rows; ++i) out.sequence_offsets.push_back(static_cast<int32_t>(i));
}

void SampleSource::append_document(int64_t sample, size_t place, size_t row, HostBatch& out) const {
  DocumentColumns& columns = out.documents;
  columns.ids.push_back((first_id_ + sample) * file_->info().group + static_cast<int64_t>(place));
  const auto first = out.targets.begin() + static_cast<std::ptrdiff_t>(row);
  const auto without = std::count(first, out.targets.end(), ignore_target);
  columns.targets.push_back(scores_ ? 1 : out.targets.end() - first - without);
  const size_t document = document_of(sample, place);
  if (file_->info().has_labels()) return append_labels(document, index_.span(sample, place), row, out);
  if (!file_->values().empty()) columns.values.push_back(file_->values()[document]);
}

/// Rows with a label count: the last one of a text, or some of its tokens'.
void SampleSource::append_labels(size_t document, const SampleSpan& span, size_t row, HostBatch& out) const {
  DocumentColumns& columns = out.documents;
  if (!file_->info().has_token_labels()) {
    const std::span<const float> values = file_->values_of(document, document + 1);
    columns.values.insert(columns.values.end(), values.begin(), values.end());
    return columns.rows.push_back(static_cast<int32_t>(out.ids.size()) - 1);
  }
  std::fill(out.loss_weights.begin() + static_cast<std::ptrdiff_t>(row), out.loss_weights.end(), 0.0F);
  columns.targets.back() = 0;
  const std::span<const float> labels = token_labels(span).first(out.ids.size() - row);
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0) continue;
    out.loss_weights[row + i] = 1;
    columns.values.push_back(labels[i]);
    columns.rows.push_back(static_cast<int32_t>(row + i));
    ++columns.targets.back();
  }
}

size_t SampleSource::document_of(int64_t sample, size_t place) const {
  const auto begin = static_cast<uint64_t>(index_.span(sample, place).begin);
  const auto next = std::ranges::upper_bound(file_->documents(), begin);
  return static_cast<size_t>(next - file_->documents().begin()) - 1;
}

double SampleSource::mean_value(int64_t sample) const {
  const std::span<const uint64_t> borders = file_->documents();
  const std::span<const float> values = file_->values();
  LLMTRAIN_CHECK(!values.empty(), "the documents have no values");
  double sum = 0;
  each_span(sample, no_limit, [&](size_t number, const SampleSpan& span) {
    const auto end = static_cast<uint64_t>(span.begin + span.inputs);
    auto begin = static_cast<uint64_t>(span.begin);
    for (size_t d = document_of(sample, number); begin < end; ++d) {
      const uint64_t stop = std::min(end, borders[d + 1]);
      sum += static_cast<double>(values[d]) * static_cast<double>(stop - begin);
      begin = stop;
    }
  });
  return sum / static_cast<double>(index_.inputs(sample));
}

void SampleSource::read_inputs(int64_t sample, std::vector<int32_t>& ids) const {
  ids.resize(static_cast<size_t>(index_.inputs(sample)));
  int64_t at = 0;
  each_span(sample, no_limit, [&](size_t, const SampleSpan& span) {
    file_->read(span.begin, span.inputs, ids.data() + at);
    at += span.inputs;
  });
}

void SampleSource::read_prompt(int64_t sample, std::vector<int32_t>& ids) const {
  LLMTRAIN_CHECK(file_->info().has_prompts(), "the samples are not prompts");
  const SampleSpan span = index_.span(sample, 0);
  ids.resize(static_cast<size_t>(span.inputs));
  file_->read(span.begin, span.inputs, ids.data());
}

StoredRow SampleSource::row(int64_t sample) const {
  return StoredRow::parse(file_->row_text(static_cast<int64_t>(document_of(sample, 0))));
}

/// Its last row counts.
void SampleSource::append_scored_span(const SampleSpan& span, HostBatch& out) const {
  const size_t n = static_cast<size_t>(span.inputs), row = out.ids.size();
  out.ids.resize(row + n);
  file_->read(span.begin, span.inputs, out.ids.data() + row);
  out.targets.resize(row + n, ignore_target);
  out.loss_weights.resize(row + n, 0);
  out.loss_weights.back() = 1;
  for (size_t i = 0; i < n; ++i) out.positions.push_back(static_cast<int32_t>(i));
  out.segments.push_back(static_cast<int32_t>(row + n));
}

void SampleSource::append_span(const SampleSpan& span, HostBatch& out) const {
  const size_t n = static_cast<size_t>(span.inputs), row = out.ids.size();
  out.window.resize(n + 1);
  file_->read(span.begin, span.inputs + 1, out.window.data());
  out.ids.insert(out.ids.end(), out.window.begin(), out.window.end() - 1);
  out.targets.insert(out.targets.end(), out.window.begin() + 1, out.window.end());
  out.loss_weights.insert(out.loss_weights.end(), n, 1.0F);
  const auto drop = [&](size_t i) {
    out.targets[row + i] = ignore_target;
    out.loss_weights[row + i] = 0;
  };
  for (size_t i = 0; i < static_cast<size_t>(span.context); ++i) drop(i);
  if (file_->info().has_mask) {
    out.window_mask.resize(n);
    file_->read_mask(span.begin + 1, span.inputs, out.window_mask.data());
    for (size_t i = 0; i < n; ++i) {
      if (out.window_mask[i] == 0) drop(i);
    }
  }
  size_t segment = 0;  // first row of the segment in the current one
  const auto close_segment = [&](size_t end) {
    for (size_t i = segment; i < end; ++i) out.positions.push_back(static_cast<int32_t>(i - segment));
    out.segments.push_back(static_cast<int32_t>(row + end));
    segment = end;
  };
  for (const uint64_t border : borders_in(span)) {
    const size_t i = static_cast<size_t>(border) - static_cast<size_t>(span.begin);  // start of the next document
    drop(i - 1);
    if (!across_documents_ && i < n) close_segment(i);
  }
  close_segment(n);
}

}  // namespace llmtrain
