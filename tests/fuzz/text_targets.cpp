// Tokenizers and JSON.

#include <cstdlib>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "fuzz/targets.hpp"
#include "text/files/tokenizer_json.hpp"
#include "text/files/tokenizer_readers.hpp"
#include "text/pipeline/pipeline_tokenizer.hpp"
#include "text/sentencepiece/sentencepiece_model.hpp"
#include "text/text_stream.hpp"

namespace llmtrain::fuzz {
namespace {

constexpr std::string_view text =
    "The cat's 1234 mats,  \xE4\xB8\xAD\xE6\x96\x87 \xC3\xA9\x65\xCC\x81\r\n\n\t<s>\xF0\x9F\x98\x80 \xFF\xC3 aaaaaaaa ";

/// Ids lie in the vocabulary, ranges in the text, and the texts of single tokens concatenate to the whole.
void use(const Tokenizer& tokenizer) {
  const auto expect = [](bool condition) {
    if (!condition) std::abort();
  };
  std::vector<int32_t> ids;
  std::vector<TextRange> ranges;
  tokenizer.encode(text, ids);
  for (const int32_t id : ids) expect(id >= 0 && id < tokenizer.vocabulary_size());
  std::vector<int32_t> again;
  tokenizer.encode_with_ranges(text, again, ranges);
  expect(again == ids && ranges.size() == ids.size());
  for (const TextRange& range : ranges) expect(range.begin <= range.end && range.end <= text.size());
  tokenizer.add_special_tokens(ids, nullptr);
  TextStream stream(tokenizer, {});
  for (const int32_t id : ids) stream.add(id);
  expect(stream.text() == tokenizer.decode(ids));
}

}  // namespace

void run_json(std::string_view bytes) try { parse_json(bytes, "input"); } catch (const UserError&) {
}

void run_tokenizer_json(std::string_view bytes) try {
  use(*make_pipeline_tokenizer(read_tokenizer_json(bytes, "input"), {}));
} catch (const UserError&) {
}

void run_sentencepiece(std::string_view bytes) try {
  use(*make_sentencepiece_tokenizer(read_sentencepiece_model(bytes, "input"), {}));
} catch (const UserError&) {
}

void run_tiktoken(std::string_view bytes) try {
  use(*make_pipeline_tokenizer(read_tiktoken_file(bytes, "input"), {}));
} catch (const UserError&) {
}

}  // namespace llmtrain::fuzz
