#include "hf/config/config_json.hpp"
#include "hf/export.hpp"
#include "parallel/message.hpp"
#include "tasks/parts.hpp"
#include "text/chat/chat_encoder.hpp"
#include "train/checkpoint_model.hpp"

namespace llmtrain {

std::vector<int64_t> stop_tokens(const Config& config, const Dataset& data,
                                 const std::map<std::string, std::string>& texts) {
  std::vector<int64_t> ids;
  if (data.tokenizer != nullptr && data.rules.instructions) {
    ids = export_chat(data.chat.config, *data.tokenizer, data.chat.files).stop_ids;
  }
  if (data.tokenizer != nullptr && data.tokenizer->eos_id() >= 0) ids.push_back(data.tokenizer->eos_id());
  for (const char* name : {"config.json", "generation_config.json"}) {
    const auto text = texts.find(name);
    if (text == texts.end()) continue;
    const std::vector<int64_t> more = parse_generation_ids(text->second, config.model.path + "/" + name, {}).eos;
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

namespace {

std::map<std::string, std::string> texts_of_model(const Config& config) {
  const ModelSource& source = config.source;
  if (!source.checkpoint.empty()) return CheckpointModel::texts(source.checkpoint);
  if (!source.fallback_checkpoint.empty()) return CheckpointModel::texts(source.fallback_checkpoint);
  return config.model.path.empty() ? std::map<std::string, std::string>() : model_texts(config.model.path);
}

}  // namespace

std::vector<int32_t> find_stop_tokens(const Config& config, const Dataset& data, Communicator& communicator) {
  std::string packed;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    Message message;
    message.put(stop_tokens(config, data, texts_of_model(config)));
    packed = message.bytes();
  });
  communicator.broadcast(packed);
  std::vector<int64_t> ids;
  Message(packed).take(ids);
  return {ids.begin(), ids.end()};
}

}  // namespace llmtrain
