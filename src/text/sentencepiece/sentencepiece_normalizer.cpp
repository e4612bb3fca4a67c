#include "text/pipeline/literal_matcher.hpp"
#include "text/sentencepiece/sentencepiece_model.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

}  // namespace

struct SentencePieceNormalizer::Impl {
  std::shared_ptr<const Charsmap> charsmap;
  bool dummy_prefix = false;
  bool suffix = false;  // the dummy space goes to the end
  bool remove_extra = false;
  bool escape = false;
  bool keeps_bytes = false;  // stray bytes have tokens; otherwise they become U+FFFD
  LiteralMatcher user_defined;

  /// Normalized form of the text at a position, and the number of bytes that it replaces.
  struct Step {
    std::string_view text;
    size_t length;
  };
  /// `matches` are the positions of user-defined pieces, which never change; `m` advances to the first one at or after
  /// i.
  Step step(std::string_view text, size_t i, const std::vector<LiteralMatcher::Match>& matches, size_t& m) const {
    while (m < matches.size() && matches[m].begin < i) ++m;
    if (m < matches.size() && matches[m].begin == i) {
      return {text.substr(i, matches[m].end - i), matches[m].end - i};
    }
    if (charsmap != nullptr) {
      const Charsmap::Match match = charsmap->longest(text.substr(i));
      if (match.length > 0) return {match.replacement, match.length};
    }
    const Character c = character_at(text, i);
    if (is_stray_byte(c.code) && !keeps_bytes) return {replacement_character, 1};
    return {text.substr(i, c.length), c.length};
  }
};

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceModel& model) : impl_(std::make_unique<Impl>()) {
  impl_->charsmap = model.charsmap;
  impl_->dummy_prefix = model.add_dummy_prefix;
  impl_->suffix = model.whitespace_as_suffix;
  impl_->remove_extra = model.remove_extra_whitespaces;
  impl_->escape = model.escape_whitespaces;
  impl_->keeps_bytes = model.byte_fallback;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    if (piece.type == SentencePieceModel::Type::user_defined) {
      impl_->user_defined.add(piece.text, static_cast<int32_t>(id));
    }
  }
  impl_->user_defined.finish();
}

SentencePieceNormalizer::~SentencePieceNormalizer() = default;

void SentencePieceNormalizer::normalize(std::string_view text, bool continues, std::string& normal,
                                        std::vector<size_t>* origins) const {
  const Impl& rules = *impl_;
  normal.clear();
  if (origins != nullptr) origins->clear();
  if (text.empty()) return;
  std::vector<LiteralMatcher::Match> matches;
  if (!rules.user_defined.empty()) rules.user_defined.find_all(text, matches);
  size_t m = 0, i = 0;
  const std::string_view space = rules.escape ? space_symbol : " ";
  const auto put = [&](std::string_view part) {
    normal += part;
    if (origins != nullptr) origins->insert(origins->end(), part.size(), i);
  };
  if (rules.remove_extra && !continues) {
    while (i < text.size()) {
      const Impl::Step step = rules.step(text, i, matches, m);
      if (step.text != " ") break;
      i += step.length;
    }
    if (i == text.size()) return;  // only spaces
  }
  if (!rules.suffix && rules.dummy_prefix && !continues) put(space);
  bool after_space = rules.remove_extra && !continues;
  while (i < text.size()) {
    Impl::Step step = rules.step(text, i, matches, m);
    while (after_space && step.text.starts_with(' ')) step.text.remove_prefix(1);
    if (!step.text.empty()) {
      for (const char& c : step.text) put(c == ' ' && rules.escape ? space : std::string_view(&c, 1));
      after_space = rules.remove_extra && step.text.ends_with(' ');
    }
    i += step.length;
    if (!rules.remove_extra) after_space = false;
  }
  while (rules.remove_extra && std::string_view(normal).ends_with(space)) {
    normal.resize(normal.size() - space.size());
    if (origins == nullptr) continue;
    i = (*origins)[normal.size()];
    origins->resize(normal.size());
  }
  if (rules.suffix && rules.dummy_prefix) put(space);
  if (origins != nullptr) origins->push_back(i);
}

}  // namespace llmtrain
