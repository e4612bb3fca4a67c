#include "text/sentencepiece/charsmap.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "text/pipeline/normalizer.hpp"
#include "text/unicode/character_sets.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

// A unit of the trie has 32 bits: the label of the edge to it (bits 0-7, and bit 31 set for values), a flag for a value
// below it (bit 8), and the offset of its children, combined by exclusive or (bits 10-30, times 256 if bit 9 is set).
uint32_t label_of(uint32_t unit) { return unit & (0x80000000u | 0xFFu); }
bool has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & (1u << 9)) >> 6); }

constexpr size_t max_blob = size_t{16} << 20;

/// Replaces like Precompiled of the tokenizers library: a cluster shorter than six bytes is replaced as a whole by the
/// shortest rule that is its prefix, others character by character. The reference has the same peculiarity.
class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(std::shared_ptr<const Charsmap> charsmap) : charsmap_(std::move(charsmap)) {}

  bool keeps(std::string_view text) const override { return text.empty(); }
  void apply(const TextView& from, AlignedText& to) const override {
    CharacterRewriter writer(from, to);
    for (size_t i = 0; i < from.text.size();) {
      const size_t end = grapheme_end(from.text, i);
      const std::string_view cluster = from.text.substr(i, end - i);
      i = end;
      if (cluster.size() < 6) {
        const Charsmap::Match match = charsmap_->shortest(cluster);
        if (match.length > 0) {
          replace(cluster, match.replacement, writer);
          continue;
        }
      }
      for (size_t k = 0; k < cluster.size();) {
        const Character c = character_at(cluster, k);
        const std::string_view one = cluster.substr(k, c.length);
        k += c.length;
        const Charsmap::Match match = charsmap_->shortest(one);
        if (match.length > 0) {
          replace(one, match.replacement, writer);
        } else {
          writer.hold(c.code, 0);
        }
      }
    }
    writer.finish();
  }

 private:
  static void replace(std::string_view old, std::string_view content, CharacterRewriter& writer) {
    const std::u32string fresh = to_characters(content);
    const int before = static_cast<int>(to_characters(old).size());
    const int after = static_cast<int>(fresh.size());
    if (after == 0) writer.remove(before);
    for (int i = 0; i < after; ++i) {
      const bool last = i + 1 == after;
      writer.hold(fresh[static_cast<size_t>(i)], i >= before ? 1 : last ? after - before : 0);
    }
  }

  std::shared_ptr<const Charsmap> charsmap_;
};

}  // namespace

Charsmap::Charsmap(std::string_view blob, const std::string& name) {
  const auto refuse = [&](const std::string& what) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: precompiled_charsmap: {}", name, what));
  };
  if (blob.size() > max_blob) refuse("too large");
  if (blob.size() <= 4) refuse("too short to hold a trie");
  const auto word = [&](size_t i) {
    uint32_t value = 0;
    for (size_t k = 4; k-- > 0;) value = value << 8 | static_cast<uint8_t>(blob[i + k]);
    return value;
  };
  const size_t bytes = word(0);
  if (bytes % 4 != 0 || bytes == 0 || bytes >= blob.size() - 4) {
    refuse(fmt::format("it declares a trie of {} bytes, but has {} bytes", bytes, blob.size()));
  }
  units_.reserve(bytes / 4);
  for (size_t i = 0; i < bytes; i += 4) units_.push_back(word(4 + i));
  replacements_ = blob.substr(4 + bytes);
  if (find_invalid_utf8(replacements_) != std::string_view::npos) refuse("its replacements are not UTF-8");
  if (replacements_.empty() || replacements_.back() != '\0') refuse("its last replacement has no end");
  check(name);
}

/// Checks that every child that a search can reach lies inside, whatever the text: a search checks its own steps;
/// values must point to the beginning of a character.
void Charsmap::check(const std::string& name) const {
  const auto refuse = [&](size_t unit, const std::string& what) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: precompiled_charsmap: unit {} of the trie {}", name, unit, what));
  };
  if (offset_of(units_[0]) >= units_.size()) refuse(0, "points outside");
  for (size_t i = 0; i < units_.size(); ++i) {
    const uint32_t unit = units_[i];
    if ((unit & 0x80000000u) != 0 || !has_value(unit)) continue;
    const size_t place = i ^ offset_of(unit);
    if (place >= units_.size()) refuse(i, "points outside");
    const uint32_t value = value_of(units_[place]);
    if (value >= replacements_.size() || is_utf8_continuation(replacements_[value])) {
      refuse(i, fmt::format("points to replacement {} of {}", value, replacements_.size()));
    }
  }
}

Charsmap::Match Charsmap::find(std::string_view text, bool longest) const {
  Match match;
  size_t place = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte == 0) break;
    place ^= byte;
    if (place >= units_.size()) break;
    const uint32_t unit = units_[place];
    if (label_of(unit) != byte) break;
    place ^= offset_of(unit);
    if (has_value(unit)) {
      const std::string_view rest = std::string_view(replacements_).substr(value_of(units_[place]));
      match = {i + 1, rest.substr(0, rest.find('\0'))};
      if (!longest) break;
    }
  }
  return match;
}

std::unique_ptr<Normalizer> make_precompiled_normalizer(std::shared_ptr<const Charsmap> charsmap) {
  return std::make_unique<Precompiled>(std::move(charsmap));
}

}  // namespace llmtrain
