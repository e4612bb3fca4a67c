#include "data/stream/sample_index.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "data/stream/packing.hpp"

namespace llmtrain {
namespace {

/// Messages name the text, since users do not know the cached token file.
std::string title_of(const TokenFileInfo& info) {
  if (info.sources.empty()) return info.path;
  std::string first = info.sources.front();  // "name size hash"
  for (int field = 0; field < 2; ++field) first.resize(std::min(first.size(), first.rfind(' ')));
  return fmt::format("{} (of {}{})", info.path, first,
                     info.sources.size() > 1 ? fmt::format(" and {} more", info.sources.size() - 1) : "");
}

}  // namespace

SampleCounts& SampleCounts::operator+=(const SampleCounts& other) {
  for (const auto member : {&SampleCounts::samples, &SampleCounts::inputs, &SampleCounts::too_long,
                            &SampleCounts::dropped, &SampleCounts::lost_targets, &SampleCounts::without_target,
                            &SampleCounts::unused_tokens, &SampleCounts::shorter_prompts}) {
    this->*member += other.*member;
  }
  group = std::max(group, other.group);
  return *this;
}

SampleIndex::SampleIndex(const TokenFile& file, const SampleRules& data, const BatchConfig& batch)
    : documents_(file.documents()),
      packing_(data.packing),
      overflow_(data.overflow),
      length_(data.room(batch.sequence_length)),
      stride_(data.stride),
      behind_(data.targets_behind()),
      tokens_(file.tokens()) {
  LLMTRAIN_CHECK(length_ >= 1 && length_ < int64_t{1} << 31, "sequence length");
  if (file.info().has_groups() && overflow_ == DataConfig::Overflow::split) overflow_ = DataConfig::Overflow::truncate;
  Communicator& ranks = file.ranks();
  on_root(ranks, [&] { make(file, data); });
  first_sample_ = first_sample_.shared(ranks);
  span_range_ = span_range_.shared(ranks);
  span_begin_ = span_begin_.shared(ranks);
  span_inputs_ = span_inputs_.shared(ranks);
  ranks.broadcast(&longest_, sizeof(longest_));
  ranks.broadcast(&max_documents_, sizeof(max_documents_));
  ranks.broadcast(&counts_, sizeof(counts_));
}

void SampleIndex::make(const TokenFile& file, const SampleRules& data) {
  if (file.info().has_groups()) {
    index_groups(file, data.max_prompt_length);
  } else if (packing_ == DataConfig::Packing::wrap) {
    index_windows(file, data.keep_rest);
  } else {
    index_documents(file);
    if (packing_ != DataConfig::Packing::none) index_packs();
  }
}

void SampleIndex::index_windows(const TokenFile& file, bool keep_rest) {
  if (stride_ > 0) {  // the last window ends with the tokens; a window of a single token would have no target
    LLMTRAIN_CHECK(stride_ <= length_ && length_ >= 2, "windows overlap or touch");
    counts_.samples = tokens_ < 2 ? 0 : 1 + (std::max<int64_t>(0, tokens_ - length_) + stride_ - 1) / stride_;
    if (counts_.samples > 0 && window(counts_.samples - 1).inputs == 0) --counts_.samples;
  } else {
    counts_.samples = (tokens_ - 1 + (keep_rest ? length_ - 1 : 0)) / length_;
  }
  if (counts_.samples == 0) {
    throw UserError(
        ExitCode::bad_content,
        fmt::format("{}: {} tokens are fewer than one sample needs ({}); give more text, another share of "
                    "it (data.validation_fraction) or a shorter batch.sequence_length (of evaluate it is automatic, "
                    "by the model's limit, unless it is given)",
                    title_of(file.info()), tokens_, keep_rest || stride_ > 0 ? 2 : length_ + 1));
  }
  const SampleSpan last = window(counts_.samples - 1);
  counts_.unused_tokens = tokens_ - 1 - (last.begin + last.inputs);
  longest_ = window(0).inputs;
  size_t first = 1, end = 1;  // documents that begin inside the window, after its start
  for (int64_t sample = 0; sample < counts_.samples; ++sample) {
    const SampleSpan span = window(sample);
    counts_.inputs += span.inputs;
    const auto inside = [&](size_t d, int64_t border) {
      return d + 1 < documents_.size() && static_cast<int64_t>(documents_[d]) < border;
    };
    while (inside(first, span.begin + 1)) ++first;
    end = std::max(end, first);
    while (inside(end, span.begin + span.inputs)) ++end;
    max_documents_ = std::max(max_documents_, static_cast<int64_t>(end - first) + 1);
  }
}

/// With a stride as in Transformers' guide "Perplexity of fixed-length models": a window is `length_` tokens, the last
/// of which is a target only.
SampleSpan SampleIndex::window(int64_t sample) const {
  if (stride_ == 0) return {sample * length_, std::min(length_, tokens_ - 1 - sample * length_)};
  const int64_t begin = sample * stride_, before = begin - stride_ + length_;  // end of the window before it
  return {begin, std::min(begin + length_, tokens_) - begin - 1,
          sample == 0 ? 0 : std::max<int64_t>(0, before - 1 - begin)};
}

SampleIndex::Windows SampleIndex::windows_of(size_t document) const {
  return windows_of_range(static_cast<int64_t>(documents_[document]), static_cast<int64_t>(documents_[document + 1]));
}

SampleIndex::Windows SampleIndex::windows_of_range(int64_t begin, int64_t end) const {
  const int64_t inputs = end - begin - behind_;
  if (inputs <= length_) return {begin, inputs, std::min<int64_t>(inputs, 1)};
  switch (overflow_) {
    case DataConfig::Overflow::truncate:
      return {begin, length_, 1};
    case DataConfig::Overflow::truncate_left:
      return {end - behind_ - length_, length_, 1};
    case DataConfig::Overflow::drop:
      return {begin, 0, 0};
    case DataConfig::Overflow::split:
    case DataConfig::Overflow::error:
      break;
  }
  return {begin, inputs, (inputs + length_ - 1) / length_};
}

bool SampleIndex::has_target(const TokenFile& file, const Windows& kept) const {
  if (behind_ == 0) return true;
  std::vector<uint8_t> mask(static_cast<size_t>(kept.inputs));
  file.read_mask(kept.begin + 1, kept.inputs, mask.data());
  return std::ranges::find(mask, uint8_t{1}) != mask.end();
}

/// True if a row of instruction data that is too long keeps no target.
bool SampleIndex::loses_targets(const TokenFile& file, size_t document) const {
  return file.info().rows.used > 0 && overflow_ != DataConfig::Overflow::split &&
         !has_target(file, windows_of(document));
}

void SampleIndex::refuse_too_long(const TokenFile& file, size_t document, int64_t tokens) const {
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: document {}: {}", title_of(file.info()), document + 1,
                              too_long_document(file.info().rows.used > 0, tokens, length_ + behind_)));
}

/// Returns what is kept of a document whose prompt keeps its last tokens. The prompt is what comes before the first
/// trained token.
SampleIndex::Windows SampleIndex::windows_behind_prompt(const TokenFile& file, size_t document, int64_t max_prompt) {
  auto begin = static_cast<int64_t>(documents_[document]);
  const auto end = static_cast<int64_t>(documents_[document + 1]);
  if (max_prompt > 0 && max_prompt < end - begin) {
    std::vector<uint8_t> mask(static_cast<size_t>(end - begin));
    file.read_mask(begin, end - begin, mask.data());
    const int64_t prompt = std::ranges::find(mask, uint8_t{1}) - mask.begin();
    const int64_t left_out = std::max<int64_t>(0, prompt - max_prompt);
    counts_.shorter_prompts += left_out > 0 ? 1 : 0;
    counts_.unused_tokens += left_out;
    begin += left_out;
  }
  const Windows windows = windows_of_range(begin, end);
  if (end - begin - behind_ > length_) {
    ++counts_.too_long;
    if (overflow_ == DataConfig::Overflow::error) refuse_too_long(file, document, end - begin);
  }
  counts_.unused_tokens += end - begin - behind_ - windows.inputs;
  return windows;
}

void SampleIndex::index_groups(const TokenFile& file, int64_t max_prompt) {
  const auto group = static_cast<size_t>(file.info().group);
  counts_.group = max_documents_ = file.info().group;
  std::vector<Windows> windows(group);
  std::vector<int64_t> ranges{0}, begins;
  std::vector<int32_t> lengths;
  for (size_t first = 0; first + group < documents_.size(); first += group) {
    int64_t inputs = 0;
    bool whole = true, dropped = false, trained = true;
    for (size_t d = 0; d < group; ++d) {
      windows[d] = windows_behind_prompt(file, first + d, max_prompt);
      whole = whole && static_cast<int64_t>(documents_[first + d + 1] - documents_[first + d]) > behind_;
      dropped = dropped || windows[d].inputs == 0;
      trained = trained && (dropped || has_target(file, windows[d]));
      inputs += windows[d].inputs;
    }
    int64_t* const left_out = !whole    ? &counts_.without_target
                              : dropped ? &counts_.dropped
                              : trained ? nullptr
                                        : &counts_.lost_targets;
    if (left_out != nullptr) {
      ++*left_out;
      counts_.unused_tokens += inputs;
      continue;
    }
    for (const Windows& kept : windows) {
      begins.push_back(kept.begin);
      lengths.push_back(static_cast<int32_t>(kept.inputs));
    }
    ranges.push_back(std::ssize(begins));
    counts_.inputs += inputs;
    longest_ = std::max(longest_, inputs);
  }
  counts_.samples = std::ssize(ranges) - 1;
  if (counts_.samples == 0) refuse_no_sample(file);
  span_range_ = std::move(ranges);
  span_begin_ = std::move(begins);
  span_inputs_ = std::move(lengths);
}

void SampleIndex::index_documents(const TokenFile& file) {
  std::vector<int64_t> first;
  first.reserve(documents_.size());
  for (size_t d = 0; d + 1 < documents_.size(); ++d) {
    first.push_back(counts_.samples);
    const int64_t inputs = static_cast<int64_t>(documents_[d + 1] - documents_[d]) - 1;
    if (inputs == 0) ++counts_.without_target;
    Windows windows = windows_of(d);
    if (inputs > length_) {
      ++counts_.too_long;
      if (overflow_ == DataConfig::Overflow::error) refuse_too_long(file, d, inputs + 1);
      if (windows.count == 0) ++counts_.dropped;
      if (windows.count > 0 && loses_targets(file, d)) {
        ++counts_.lost_targets;
        windows.inputs = windows.count = 0;
      }
      counts_.unused_tokens += inputs - windows.inputs;
    }
    counts_.inputs += windows.inputs;
    longest_ = std::max(longest_, std::min(windows.inputs, length_));
    counts_.samples += windows.count;
  }
  first.push_back(counts_.samples);
  if (counts_.samples == 0) refuse_no_sample(file);
  first_sample_ = std::move(first);
}

void SampleIndex::refuse_no_sample(const TokenFile& file) const {
  const std::string title = title_of(file.info());
  if (counts_.too_long == 0) {
    throw UserError(ExitCode::bad_content,
                    title + (behind_ == 0 ? ": no document has a token"
                                          : ": no document has two tokens, so there is no target to train on"));
  }
  throw UserError(
      ExitCode::bad_content,
      fmt::format(
          "{}: {} of {} {} are longer than the {} tokens that batch.sequence_length allows and are left "
          "out (data.overflow), {} of them because they would keep no token to train on; no sample "
          "is left. Choose a longer sequence{}",
          title, counts_.dropped + counts_.lost_targets, (static_cast<int64_t>(documents_.size()) - 1) / counts_.group,
          counts_.group > 1 ? "pairs" : "documents", length_ + behind_, counts_.lost_targets,
          counts_.lost_targets > 0 && overflow_ == DataConfig::Overflow::truncate ? ", or data.overflow = truncate_left"
                                                                                  : ""));
}

/// Packs the samples of index_documents into fewer ones.
void SampleIndex::index_packs() {
  const auto items = static_cast<size_t>(counts_.samples);
  std::vector<int64_t> begins;
  std::vector<int32_t> lengths;
  begins.reserve(items);
  lengths.reserve(items);
  for (size_t d = 0; d + 1 < documents_.size(); ++d) {
    if (first_sample_[d] == first_sample_[d + 1]) continue;  // left out
    const Windows windows = windows_of(d);
    for (int64_t at = 0; at < windows.inputs; at += length_) {
      begins.push_back(windows.begin + at);
      lengths.push_back(static_cast<int32_t>(std::min(length_, windows.inputs - at)));
    }
  }
  first_sample_ = {};
  Packs packs = pack_items(packing_, lengths, static_cast<int32_t>(length_));
  std::vector<int64_t> packed_begins;
  std::vector<int32_t> packed_lengths;
  packed_begins.reserve(items);
  packed_lengths.reserve(items);
  for (const int32_t item : packs.items) {
    packed_begins.push_back(begins[static_cast<size_t>(item)]);
    packed_lengths.push_back(lengths[static_cast<size_t>(item)]);
  }
  span_range_ = std::move(packs.begin);
  span_begin_ = std::move(packed_begins);
  span_inputs_ = std::move(packed_lengths);
  counts_.samples = static_cast<int64_t>(span_range_.size()) - 1;
  longest_ = 0;
  for (int64_t sample = 0; sample < counts_.samples; ++sample) {
    longest_ = std::max(longest_, inputs(sample));
    max_documents_ = std::max(max_documents_, static_cast<int64_t>(spans(sample)));
  }
}

SampleSpan SampleIndex::whole_span(int64_t sample) const {
  if (packing_ == DataConfig::Packing::wrap) return window(sample);
  const auto next = std::upper_bound(first_sample_.begin(), first_sample_.end(), sample);
  const size_t d = static_cast<size_t>(next - first_sample_.begin()) - 1;
  const Windows windows = windows_of(d);
  const int64_t before = (sample - first_sample_[d]) * length_;
  return {windows.begin + before, std::min(length_, windows.inputs - before)};
}

size_t SampleIndex::spans(int64_t sample) const {
  LLMTRAIN_CHECK(sample >= 0 && sample < counts_.samples, "no such sample");
  if (span_range_.empty()) return 1;
  const auto s = static_cast<size_t>(sample);
  return static_cast<size_t>(span_range_[s + 1] - span_range_[s]);
}

SampleSpan SampleIndex::span(int64_t sample, size_t number) const {
  LLMTRAIN_CHECK(number < spans(sample), "no such span of the sample");
  if (span_range_.empty()) return whole_span(sample);
  const size_t at = static_cast<size_t>(span_range_[static_cast<size_t>(sample)]) + number;
  return {span_begin_[at], span_inputs_[at]};
}

int64_t SampleIndex::inputs(int64_t sample) const {
  int64_t sum = 0;
  for (size_t number = 0; number < spans(sample); ++number) sum += span(sample, number).inputs;
  return sum;
}

}  // namespace llmtrain
