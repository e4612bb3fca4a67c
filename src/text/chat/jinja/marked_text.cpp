#include "text/chat/jinja/marked_text.hpp"

namespace llmtrain::jinja {

MarkedText::MarkedText(std::string bytes, Marks marks) : bytes_(std::move(bytes)) {
  if (marks != 0) append_span({0, bytes_.size(), marks});
}

Marks MarkedText::all_marks() const {
  Marks all = 0;
  for (const MarkedSpan& span : spans_) all = join_marks(all, span.marks);
  return all;
}

void MarkedText::append_span(const MarkedSpan& span) {
  if (span.begin >= span.end || span.marks == 0) return;
  if (!spans_.empty() && spans_.back().end == span.begin && spans_.back().marks == span.marks) {
    spans_.back().end = span.end;
  } else {
    spans_.push_back(span);
  }
}

void MarkedText::append(const MarkedText& text, size_t begin, size_t end) {
  const size_t base = bytes_.size();
  bytes_.append(text.bytes_, begin, end - begin);
  for (const MarkedSpan& span : text.spans_) {
    const size_t from = std::max(span.begin, begin), to = std::min(span.end, end);
    if (from < to) append_span({base + from - begin, base + to - begin, span.marks});
  }
}

MarkedText MarkedText::slice(size_t begin, size_t end) const {
  MarkedText part;
  part.append(*this, begin, end);
  return part;
}

void MarkedText::add_marks(Marks marks) {
  MarkedText marked;
  size_t done = 0;
  for (const MarkedSpan& span : spans_) {
    marked.append_span({done, span.begin, marks});
    marked.append_span({span.begin, span.end, join_marks(span.marks, marks)});
    done = span.end;
  }
  marked.append_span({done, bytes_.size(), marks});
  spans_ = std::move(marked.spans_);
}

}  // namespace llmtrain::jinja
