// Translation of Oniguruma's syntax to PCRE2's.

#include "text/split/regex_translator.hpp"

#include "text/split/regex.hpp"

namespace llmtrain {

std::string translate_regex(std::string_view pattern, const std::string& place) {
  return RegexTranslator(pattern, place).run();
}

}  // namespace llmtrain
