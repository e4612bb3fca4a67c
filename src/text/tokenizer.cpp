#include "text/tokenizer.hpp"

#include <fmt/format.h>

#include "core/files/json_node.hpp"
#include "text/load_tokenizer.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

constexpr int64_t max_serialized = int64_t{1} << 20;  // bytes; the largest char vocabulary takes half of it

std::vector<char32_t> read_code_points(const JsonNode& list) {
  if (list.array().size() == 0 || list.size() > max_char_vocabulary) {
    list.refuse(fmt::format("must be a list of 1 to {} code points", max_char_vocabulary));
  }
  std::vector<char32_t> code_points;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto c = static_cast<char32_t>(list.at(i).count(code_point_limit - 1));
    if (c >= 0xD800 && c < 0xE000) list.at(i).refuse("a surrogate is not a character");
    if (!code_points.empty() && code_points.back() >= c) list.at(i).refuse("code points must ascend");
    code_points.push_back(c);
  }
  return code_points;
}

}  // namespace

void Tokenizer::encode_content(std::string_view text, std::span<const TextRange>, std::vector<int32_t>& ids,
                               std::vector<TextRange>& ranges) const {
  encode_with_ranges(text, ids, ranges);  // no text gives a special token
}

void Tokenizer::add_special_tokens(std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const {
  if (bos_id() < 0) return;
  ids.insert(ids.begin(), bos_id());
  if (ranges != nullptr) ranges->insert(ranges->begin(), TextRange{});
}

size_t Tokenizer::find_cut(std::string_view window) const {
  for (size_t i = 1; i < window.size(); ++i) {
    if (!is_utf8_continuation(window[i]) || i > 3) return i;
  }
  return std::string_view::npos;
}

void Tokenizer::encode_segment(std::string_view text, bool, std::vector<int32_t>& ids) const { encode(text, ids); }

std::unique_ptr<Tokenizer> make_tokenizer_from(std::string_view serialized) {
  if (serialized.starts_with(R"({"type":"files",)")) return load_serialized_tokenizer(serialized);
  const std::string name = "stored tokenizer";
  const nlohmann::json document = parse_json(serialized, name, {.bytes = max_serialized});
  const JsonNode root(document, name);
  const std::string& kind = root.at("type").text();
  const bool bos = root.at("bos").boolean();
  if (kind == "bytes") return make_byte_tokenizer(bos);
  if (kind == "char") return make_char_tokenizer(read_code_points(root.at("code_points")), bos);
  root.at("type").refuse_value("char, bytes or files: make the token file again");
}

}  // namespace llmtrain
