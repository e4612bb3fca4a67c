#pragma once
// Normalization steps before pre-tokenization: those of the tokenizers library, with its results.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline/aligned_text.hpp"

namespace llmtrain {

class Charsmap;

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Returns true if a quick check shows that apply() would not change the text and origins.
  virtual bool keeps(std::string_view text) const = 0;
  virtual void apply(const TextView& from, AlignedText& to) const = 0;
  /// Returns true if a text that is cut between a letter or digit and a single space is normalized as in the whole.
  virtual bool is_segmentable() const { return false; }
  /// Returns true if it adds a prefix to a text; the segments after a cut omit it.
  virtual bool only_at_start() const { return false; }
};

/// Applies the steps in order; `to` receives the result and `spare` is overwritten. The returned view is `from` or lies
/// in one of them.
TextView normalize(const std::vector<std::unique_ptr<Normalizer>>& steps, const TextView& from, bool continues,
                   AlignedText& to, AlignedText& spare);

enum class NormalizationForm : uint8_t { nfc, nfd, nfkc, nfkd };
std::unique_ptr<Normalizer> make_form_normalizer(NormalizationForm form);
std::unique_ptr<Normalizer> make_lowercase_normalizer();
std::unique_ptr<Normalizer> make_strip_normalizer(bool left, bool right);
std::unique_ptr<Normalizer> make_strip_accents_normalizer();
/// `unless_there`: keeps texts that begin with the prefix.
std::unique_ptr<Normalizer> make_prepend_normalizer(std::string prefix, bool unless_there = false);
/// Matches every occurrence of a non-empty text.
std::unique_ptr<Normalizer> make_replace_normalizer(const std::string& pattern, std::string content);
/// Matches a regex; `place` is its file and key.
std::unique_ptr<Normalizer> make_regex_replace_normalizer(const std::string& regex, std::string content,
                                                          const std::string& place);
std::unique_ptr<Normalizer> make_nmt_normalizer();
std::unique_ptr<Normalizer> make_byte_level_normalizer();
struct BertNormalization {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
void add_bert_normalizers(const BertNormalization& options, std::vector<std::unique_ptr<Normalizer>>& steps);
std::unique_ptr<Normalizer> make_precompiled_normalizer(std::shared_ptr<const Charsmap> charsmap);

/// Function that returns the end of the match of a known regex that begins at i, or i if there is none.
using RegexMatch = size_t (*)(std::string_view text, size_t i);
/// Native code of some patterns of Replace and Split: " {2,}", "\\s+" and a few more; nullptr for others (regex.hpp).
RegexMatch find_replace_regex(std::string_view regex);

}  // namespace llmtrain
