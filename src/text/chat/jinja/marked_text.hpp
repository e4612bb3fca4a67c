#pragma once
// A string that remembers where its bytes come from. Marks follow the bytes through slices, joins and replacements, so
// that the rendered text says which of its parts are content of the row and which the model is to generate.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::jinja {

/// Bits of a mark, and from the bit `first_number` on the number of the message that the bytes come from; 0: none.
using Marks = uint32_t;
namespace mark {
inline constexpr Marks data = 1;       ///< from the variables of the template, not its own text
inline constexpr Marks generated = 2;  ///< inside a generation block
inline constexpr Marks said = 4;       ///< from a message, but for its role
inline constexpr Marks odd_block = 8;  ///< inside every second generation block, which tells neighbours apart
inline constexpr int first_number = 4;
inline constexpr Marks flags = (1 << first_number) - 1;
}  // namespace mark

/// Returns the marks of bytes that both texts give: all bits, and the higher number.
constexpr Marks join_marks(Marks a, Marks b) { return ((a | b) & mark::flags) | (std::max(a, b) & ~mark::flags); }

struct MarkedSpan {
  size_t begin = 0;
  size_t end = 0;
  Marks marks = 0;  ///< never 0
};

/// Well-formed UTF-8 with marks. Spans are in order, do not overlap, and neighbours that touch have different marks.
class MarkedText {
 public:
  MarkedText() = default;
  explicit MarkedText(std::string bytes, Marks marks = 0);

  const std::string& bytes() const { return bytes_; }
  std::span<const MarkedSpan> spans() const { return spans_; }
  size_t size() const { return bytes_.size(); }
  Marks all_marks() const;  ///< union over the text

  void append(std::string_view bytes) { bytes_ += bytes; }
  void append(const MarkedText& text) { append(text, 0, text.size()); }
  void append(const MarkedText& text, size_t begin, size_t end);  ///< bytes [begin, end) of another text
  MarkedText slice(size_t begin, size_t end) const;
  void add_marks(Marks marks);  ///< to the whole text

 private:
  void append_span(const MarkedSpan& span);

  std::string bytes_;
  std::vector<MarkedSpan> spans_;
};

}  // namespace llmtrain::jinja
