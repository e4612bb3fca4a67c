#include "data/tokenize/infilling.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <map>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/philox.hpp"
#include "data/data_config.hpp"
#include "text/tokenizer.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

using Names = std::array<std::string_view, 3>;  // prefix, middle, suffix

constexpr Names known_names[] = {
    {"<fim_prefix>", "<fim_middle>", "<fim_suffix>"},        // StarCoder, Granite code, Stable Code
    {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"},  // Qwen2.5-Coder, CodeGemma
    {"<fim-prefix>", "<fim-middle>", "<fim-suffix>"},        // SantaCoder
    {"\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>"},           // CodeLlama, with SentencePiece's space
    {"[PREFIX]", "[MIDDLE]", "[SUFFIX]"},                    // Codestral
    {"<\uFF5Cfim\u2581begin\uFF5C>", "<\uFF5Cfim\u2581end\uFF5C>", "<\uFF5Cfim\u2581hole\uFF5C>"}};  // DeepSeek-Coder

/// Byte of the character with this number; the size of the text for the number behind the last.
size_t byte_of_character(std::string_view text, uint64_t number) {
  size_t byte = 0;
  for (; number > 0 && byte < text.size(); --number) {
    for (++byte; byte < text.size() && is_utf8_continuation(text[byte]);) ++byte;
  }
  return byte;
}

}  // namespace

void Infilling::encode(const Tokenizer& tokenizer, std::string_view text, int64_t number,
                       std::vector<int32_t>& ids) const {
  const auto add = [&](size_t begin, size_t end, bool begins = false) {
    if (begin == end) return;
    try {
      tokenizer.encode_segment(text.substr(begin, end - begin), begins, ids);
    } catch (const EncodeError& error) {
      throw EncodeError(begin + error.byte(), error.reason());
    }
  };
  const Philox4 drawn = philox4x32(XXH3_64bits(text.data(), text.size()), 0, static_cast<uint64_t>(number));
  if (!(random_uniform(drawn.v[0]) < rate)) return add(0, text.size(), true);
  const uint64_t places = static_cast<uint64_t>(count_code_points(text)) + 1;
  const auto place = [&](uint32_t bits) { return byte_of_character(text, uint64_t{bits} * places >> 32); };
  const size_t one = place(drawn.v[2]), other = place(drawn.v[3]);
  const size_t first = std::min(one, other), last = std::max(one, other);
  if (random_uniform(drawn.v[1]) < spm_rate) {
    ids.insert(ids.end(), {prefix, suffix});
    add(last, text.size());
    ids.push_back(middle);
    add(0, first, true);
  } else {
    ids.push_back(prefix);
    add(0, first, true);
    ids.push_back(suffix);
    add(last, text.size());
    ids.push_back(middle);
  }
  add(first, last);
}

std::string Infilling::settings() const {
  if (rate == 0) return {};
  return fmt::format(" fim_rate={} fim_spm_rate={} fim_ids={},{},{}", rate, spm_rate, prefix, middle, suffix);
}

Infilling make_infilling(const DataConfig& config, const Tokenizer& tokenizer) {
  Infilling infilling{config.fim_rate, config.fim_spm_rate};
  if (config.fim_rate == 0) return infilling;
  std::map<std::string, int32_t, std::less<>> ids;
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) ids.emplace(tokenizer.token(id), id);
  const auto take = [&](const auto& names) {
    int32_t* const places[] = {&infilling.prefix, &infilling.middle, &infilling.suffix};
    for (size_t i = 0; i < 3; ++i) {
      const auto found = ids.find(names[i]);
      if (found == ids.end()) return std::string(names[i]);
      *places[i] = found->second;
    }
    return std::string();
  };
  if (config.fim_tokens != std::vector<std::string>{automatic_infilling_tokens}) {
    const std::string missing = take(config.fim_tokens);
    if (missing.empty()) return infilling;
    throw UserError(ExitCode::deck, fmt::format("data.fim_tokens: the tokenizer has no token {}; data.add_tokens adds "
                                                "special tokens",
                                                missing));
  }
  if (std::ranges::any_of(known_names, [&](const Names& names) { return take(names).empty(); })) return infilling;
  throw UserError(
      ExitCode::deck,
      "data.fim_tokens: the tokenizer has no sentinels of a known model; name its tokens for prefix, middle "
      "and suffix, or add some: data.add_tokens = <fim_prefix>, <fim_middle>, <fim_suffix>");
}

}  // namespace llmtrain
