#pragma once
// Sets of code points, and the sets that a tokenizer's regex can name, in the Unicode version of unicode.hpp.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llmtrain {

/// Code points without surrogates, as ascending ranges (first, last) that do not touch.
class CodePointSet {
 public:
  using Range = std::pair<char32_t, char32_t>;

  void add(char32_t first, char32_t last) { ranges_.emplace_back(first, last); }
  void add(const CodePointSet& other) { ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end()); }
  /// Sorts and joins the added ranges.
  void normalize();
  CodePointSet complement() const;
  CodePointSet without(const CodePointSet& other) const;
  CodePointSet intersection(const CodePointSet& other) const { return without(other.complement()); }
  const std::vector<Range>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }

 private:
  std::vector<Range> ranges_;
};

/// Finds a set by its name in Oniguruma's \p{...} or [:...:]; returns nothing for unknown names. `pcre` is PCRE2's name
/// of the same property in its own version of Unicode, or empty.
struct NamedSet {
  CodePointSet set;
  std::string pcre;
};
inline constexpr std::string_view bare_word_name = "\\w";          ///< as it is outside of brackets
inline constexpr std::string_view posix_punct_name = "[:punct:]";  ///< with symbols, unlike \p{Punct}
std::optional<NamedSet> find_named_set(std::string_view name);
/// Returns true if a name means upper or lower case, which (?i) changes within brackets.
bool is_name_of_case(std::string_view name);

}  // namespace llmtrain
