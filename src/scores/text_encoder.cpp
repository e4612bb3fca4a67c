#include "scores/text_encoder.hpp"

#include <algorithm>
#include <array>

#include "core/files/folder_handle.hpp"
#include "core/files/json_node.hpp"
#include "text/chat/jinja/python_text.hpp"

namespace llmtrain {

std::string_view stripped(std::string_view text) {
  const size_t begin = jinja::skip_python_spaces(text, 0);
  const size_t end = jinja::strip_python_spaces_right(text, begin, text.size());
  return text.substr(begin, end - begin);
}

std::unique_ptr<TextEncoder> open_text_encoder(const std::string& folder, int64_t layers) {
  constexpr std::array<std::string_view, 3> bert_types = {"bert", "roberta", "xlm-roberta"};
  const FolderHandle handle = FolderHandle::open(folder);
  const nlohmann::json document = read_json(handle.open_to_read("config.json"));
  const std::string type = JsonNode(document, handle.path_of("config.json")).at("model_type").text();
  const bool bert = std::ranges::find(bert_types, type) != bert_types.end();
  return bert ? open_bert_encoder(folder, layers) : open_decoder_encoder(folder, layers);
}

}  // namespace llmtrain
