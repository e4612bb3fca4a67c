#include "text/split/regex_sets.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <new>
#include <optional>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "text/unicode/character_sets.hpp"
#include "text/unicode/code_points.hpp"
#include "text/unicode/unicode.hpp"

namespace llmtrain {
std::string text_of(const CodePointSet& set) {
  std::string out;
  for (const auto& [first, last] : set.ranges()) {
    out += first == last
               ? fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(first))
               : fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", static_cast<uint32_t>(first), static_cast<uint32_t>(last));
  }
  return out;
}

namespace {

/// Returns the code points that PCRE2's property has, in the version of Unicode that it follows.
CodePointSet set_in_pcre(const std::string& property) {
  std::string all;
  for (char32_t c = 0; c < code_point_limit; ++c) {
    if (c < 0xD800 || c > 0xDFFF) append_code_point(all, c);
  }
  const std::string pattern = "\\p{" + property + "}++";
  int error = 0;
  size_t at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &at, nullptr);
  CodePointSet set;
  if (code == nullptr) return set;
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  if (data == nullptr) throw std::bad_alloc();
  const auto* bytes = reinterpret_cast<PCRE2_SPTR>(all.data());
  for (size_t from = 0; pcre2_match(code, bytes, all.size(), from, PCRE2_NO_UTF_CHECK, data, nullptr) >= 0;) {
    const size_t* range = pcre2_get_ovector_pointer(data);
    size_t i = range[0];
    for (from = range[1]; i < from;) {
      const char32_t c = next_code_point(all, i);
      set.add(c, c);
    }
  }
  pcre2_match_data_free(data);
  pcre2_code_free(code);
  set.normalize();
  return set;
}

}  // namespace

const KnownSet* known_set(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, KnownSet, std::less<>> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(name); found != known.end()) return &found->second;
  std::optional<NamedSet> named = find_named_set(name);
  if (!named) return nullptr;
  KnownSet made{std::move(named->set), ""};
  if (!named->pcre.empty()) {
    const CodePointSet there = set_in_pcre(named->pcre);
    if (!there.empty() && there.without(made.set).empty()) {
      made.text = "\\p{" + named->pcre + "}" + text_of(made.set.without(there));
    }
  }
  if (made.text.empty()) made.text = text_of(made.set);
  return &known.emplace(std::string(name), std::move(made)).first->second;
}

}  // namespace llmtrain
