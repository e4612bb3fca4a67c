#include "text/tokenizer.hpp"

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "text/files/tokenizer_files.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

constexpr size_t max_serialized = size_t{1} << 20;  // bytes; the largest char vocabulary takes half of it

[[noreturn]] void refuse(const std::string& why) {
  throw UserError(ExitCode::bad_content, "stored tokenizer: " + why + "; make the token file again");
}

/// A serialized tokenizer is flat: an object with at most one array.
nlohmann::json parse_flat(std::string_view text) {
  if (text.size() > max_serialized) refuse("too long for a char or byte tokenizer");
  int depth = 0;
  for (const char c : text) {  // strings with brackets in them are never written
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    if (depth > 2) refuse("nested too deeply");
  }
  nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
  if (object.is_discarded() || !object.is_object()) refuse("not a JSON object");
  return object;
}

std::vector<char32_t> read_code_points(const nlohmann::json& object) {
  const auto list = object.find("code_points");
  if (list == object.end() || !list->is_array() || list->empty() || list->size() > max_char_vocabulary) {
    refuse("code_points must be a list of code points");
  }
  std::vector<char32_t> code_points;
  for (const nlohmann::json& item : *list) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() >= code_point_limit) refuse("not a Unicode code point");
    const char32_t c = static_cast<char32_t>(item.get<uint64_t>());
    if (c >= 0xD800 && c < 0xE000) refuse("a surrogate is not a character");
    if (!code_points.empty() && code_points.back() >= c) refuse("code points must ascend");
    code_points.push_back(c);
  }
  return code_points;
}

}  // namespace

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
  const nlohmann::json object = parse_flat(serialized);
  const auto type = object.find("type");
  const auto bos = object.find("bos");
  if (type == object.end() || !type->is_string()) refuse("it has no type");
  if (bos == object.end() || !bos->is_boolean()) refuse("bos must be true or false");
  const std::string& kind = type->get_ref<const std::string&>();
  if (kind == "bytes") return make_byte_tokenizer(bos->get<bool>());
  if (kind == "char") return make_char_tokenizer(read_code_points(object), bos->get<bool>());
  refuse("unknown type; this version supports char, bytes and files");
}

}  // namespace llmtrain
